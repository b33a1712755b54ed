"""Users with passwords: the file, the login, its limit, and what ends a session."""

from __future__ import annotations

import stat
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from click.testing import CliRunner

from tests.support.manual_clock import ManualClock
from tests.web.running import Reply, Site, serving
from tests.web.small_hub import SmallHub
from watchkeeper.cli.hub.users import command
from watchkeeper.errors import SettingsError, StartRefused
from watchkeeper.web.auth import auth, users
from watchkeeper.web.auth.auth_reload import AuthFiles
from watchkeeper.web.login import FREE_ATTEMPTS_BY_NAME, MAX_KEYS, LoginLimit, client_network

NOW = datetime(2026, 1, 31, 9, tzinfo=UTC)
PASSWORD = "correct horse battery"


def run(*arguments: str, password: str = PASSWORD) -> tuple[int, str]:
    done = CliRunner().invoke(command, arguments, input=f"{password}\n")
    if isinstance(done.exception, SettingsError):
        return 2, str(done.exception)
    return done.exit_code, done.output


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "users"
    assert run("add", "ann", "--role", "admin", "--file", str(path))[0] == 0
    return path


@pytest.fixture
def site(file: Path) -> Iterator[Site]:
    auth_files = AuthFiles(auth.Auth(requires_login=True), users_file=file)
    auth_files.load()
    with serving(SmallHub(clock=ManualClock(NOW)), auth_files) as running:
        yield running


def sign_in(site: Site, name: str = "ann", password: str = PASSWORD) -> Reply:
    page = {"Origin": site.url, "Host": f"127.0.0.1:{site.port}"}
    return site.ask("/api/login", method="POST", body={"name": name, "password": password}, headers=page)


def whoami(site: Site, cookie: str) -> Reply:
    return site.ask("/api/whoami", headers={"Cookie": cookie.split(";", maxsplit=1)[0]})


def test_the_file_is_for_its_owner_and_holds_no_password(file: Path) -> None:
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert PASSWORD not in file.read_text()
    assert users.load_users(file)[0].hash.startswith("$argon2id$")  # type: ignore[union-attr]
    assert run("list", "--file", str(file))[1].split() == [
        "name",
        "role",
        "login",
        "ann",
        "admin",
        "password",
    ]


def test_a_user_is_added_once_with_a_long_password_and_a_name_that_a_cookie_can_hold(file: Path) -> None:
    assert "user ann exists" in run("add", "ann", "--file", str(file))[1]
    code, output = run("add", "bob", "--file", str(file), password="short")
    assert (code, "5 characters, 12 to 1024 are allowed" in output) == (2, True)
    assert run("add", "a b", "--file", str(file))[0] == 2
    assert "no user bob" in run("remove", "bob", "--file", str(file))[1]
    assert [user.name for user in users.load_users(file)] == ["ann"]


@pytest.mark.parametrize(
    ("text", "problem"),
    [("ann admin secret\n", "not an argon2 hash"), ("ann agent -\n", "agents have tokens"), ("ann\n", "expected")],
)
def test_a_wrong_file_names_its_line(tmp_path: Path, text: str, problem: str) -> None:
    path = tmp_path / "users"
    path.touch(mode=0o600)
    path.write_text(text)
    with pytest.raises(SettingsError, match=problem):
        users.load_users(path)


def test_a_file_that_others_may_read_is_refused(file: Path) -> None:
    file.chmod(0o644)
    with pytest.raises(SettingsError, match="mode 0644"):
        users.load_users(file)


@pytest.mark.slow
def test_a_user_logs_in_with_a_password_and_the_cookie_has_the_role(site: Site) -> None:
    assert sign_in(site, password="wrong").json["error"] == "wrong name or password"
    assert sign_in(site, name="eve").json["error"] == "wrong name or password"
    reply = sign_in(site)
    cookie = reply.headers["set-cookie"]
    assert {"HttpOnly", "SameSite=strict"} <= {part.strip() for part in cookie.split(";")}
    assert "Max-Age=43200" in cookie
    assert whoami(site, cookie).json == {"ok": True, "name": "ann", "role": "admin", "needs_sign_in": True}


def test_a_logout_ends_its_own_session_only(site: Site) -> None:
    here, there = sign_in(site).headers["set-cookie"], sign_in(site).headers["set-cookie"]
    page = {"Origin": site.url, "Host": f"127.0.0.1:{site.port}", "Cookie": here.split(";")[0]}
    assert site.ask("/api/logout", method="POST", body={}, headers=page).status == 200
    assert [whoami(site, cookie).status for cookie in (here, there)] == [401, 200]


def test_a_logout_survives_a_restart(file: Path, tmp_path: Path) -> None:
    def started() -> AuthFiles:
        auth_files = AuthFiles(auth.Auth(requires_login=True), users_file=file)
        auth_files.load()
        auth_files.load_session_key(tmp_path / "session.key")
        return auth_files

    before = started()
    cookies = [before.access.make_session(before.access.users[0], now=NOW) for _ in range(2)]
    before.end_session(cookies[0])
    assert [started().is_ended_session(cookie) for cookie in cookies] == [True, False]
    assert cookies[0] not in (tmp_path / "ended_sessions").read_text()


@pytest.mark.parametrize("change", [("passwd", "ann"), ("remove", "ann")])
def test_a_new_password_and_a_removal_end_sessions_while_the_hub_runs(file: Path, change: tuple[str, str]) -> None:
    time = ManualClock(NOW)
    auth_files = AuthFiles(auth.Auth(requires_login=True), users_file=file)
    auth_files.load()
    cookie = auth_files.access.make_session(auth_files.access.users[0], now=NOW)
    assert auth_files.current(time.now()).caller({}, {auth.COOKIE: cookie}, now=NOW) is not None
    assert run(*change, "--file", str(file), password="another good one")[0] == 0
    access = auth_files.current(NOW + timedelta(seconds=2))
    assert access.caller({}, {auth.COOKIE: cookie}, now=NOW) is None
    assert not access.is_open


def test_a_file_that_breaks_while_the_hub_runs_changes_nothing(file: Path, caplog: pytest.LogCaptureFixture) -> None:
    auth_files = AuthFiles(auth.Auth(requires_login=True), users_file=file)
    auth_files.load()
    file.write_text("rubbish\n")
    assert [user.name for user in auth_files.current(NOW).users] == ["ann"]
    assert "the previous rules stay active" in caplog.text
    file.unlink()
    assert [user.name for user in auth_files.current(NOW + timedelta(seconds=2)).users] == ["ann"]


def test_sessions_survive_a_restart_with_the_same_key_only(file: Path, tmp_path: Path) -> None:
    def started(key: str) -> AuthFiles:
        auth_files = AuthFiles(auth.Auth(requires_login=True), users_file=file)
        auth_files.load()
        auth_files.load_session_key(tmp_path / key)
        return auth_files

    first = started("key").access
    cookies = {auth.COOKIE: first.make_session(first.users[0], now=NOW)}
    assert started("key").access.caller({}, cookies, now=NOW) is not None
    assert started("other").access.caller({}, cookies, now=NOW) is None
    assert stat.S_IMODE((tmp_path / "key").stat().st_mode) == 0o600
    (tmp_path / "short").write_text("x")
    with pytest.raises(StartRefused, match="1 characters, at least 32"):
        started("short")


def test_after_a_few_failures_a_name_must_wait_and_the_reply_says_how_long(site: Site) -> None:
    replies = [sign_in(site, password="wrong") for _ in range(FREE_ATTEMPTS_BY_NAME + 1)]
    assert [reply.status for reply in replies] == [401] * FREE_ATTEMPTS_BY_NAME + [429]
    assert replies[-1].headers["retry-after"] == "1"
    assert replies[-1].json["error"] == "too many failed logins. Try again in 1 s"
    assert sign_in(site).status == 429


def test_waits_double_up_to_a_minute_for_a_name_and_are_forgotten_after_a_quarter_of_an_hour() -> None:
    limit, now, waits = LoginLimit(), NOW, []
    for number in range(20):
        wait = limit.start_attempt(f"10.0.0.{number}", "ann", now=now)
        waits.append(wait)
        now += timedelta(seconds=wait)
    assert waits == [0, 0, 0, 0, 0, 1, 0, 2, 0, 4, 0, 8, 0, 16, 0, 32, 0, 60, 0, 60]
    assert limit.start_attempt("10.0.0.1", "ann", now=now + timedelta(minutes=16)) == 0
    assert limit.start_attempt("10.0.0.1", "ann", now=now + timedelta(minutes=16)) == 0


def test_an_attempt_counted_before_the_clock_was_set_back_is_ignored() -> None:
    limit = LoginLimit()
    tries = [
        limit.start_attempt("10.0.0.1", "ann", now=NOW + timedelta(hours=3)) for _ in range(FREE_ATTEMPTS_BY_NAME + 1)
    ]
    assert tries[-1] == 1
    assert limit.start_attempt("10.0.0.1", "ann", now=NOW) == 0
    assert limit.start_attempt("10.0.0.1", "ann", now=NOW) > 0


def test_an_address_that_tries_many_names_waits_too_and_success_with_one_does_not_clear_it() -> None:
    limit = LoginLimit()
    for number in range(30):
        if limit.start_attempt("2001:db8::1", f"name-{number}", now=NOW) == 0 and number % 4 == 0:
            limit.record_success("2001:db8::1", f"name-{number}")
    assert limit.start_attempt("2001:db8::ffff", "another", now=NOW) > 0
    assert limit.start_attempt("2001:db8:1::1", "another", now=NOW) == 0
    assert client_network("10.1.2.3") == "10.1.2.3"


def test_the_counts_are_bounded() -> None:
    limit = LoginLimit()
    for number in range(MAX_KEYS + 500):
        limit.start_attempt(f"10.{number >> 16}.{number >> 8 & 255}.{number & 255}", f"name-{number}", now=NOW)
    assert len(limit) == 2 * MAX_KEYS


def test_an_unknown_user_name_is_not_logged(site: Site, caplog: pytest.LogCaptureFixture) -> None:
    sign_in(site, name="my-secret-password", password="x")
    sign_in(site, password="wrong")
    logged = [(record.message, getattr(record, "fields", {})) for record in caplog.records]
    assert "my-secret-password" not in str(logged) + caplog.text
    assert "(unknown)" in str([vars(record) for record in caplog.records])
