"""Fans, temperatures and power supplies from ipmitool and Redfish, and their metrics on the page."""

from __future__ import annotations

import asyncio
import json
import os
import ssl
import subprocess
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.loopback import Heard, reply, serve
from watchkeeper.agent import chassis, host_page
from watchkeeper.errors import CollectError, SettingsError
from watchkeeper.net.access import Access
from watchkeeper.readers.node import ipmi, redfish
from watchkeeper.readers.node.hwmon import Sensor
from watchkeeper.readers.node.node import NodeFacts

SDR = """
Inlet Temp       | 23 degrees C      | ok
FAN1             | 5400 RPM          | ok
FAN2             | 300 RPM           | cr
Fan Redundancy   | 0x00              | ok
DIMM 5 Temp      | no reading        | ns
PS1 Input Power  | 812 Watts         | ok
12V              | 12.10 Volts       | ok
"""
ELIST = """
Inlet Temp       | 04h | ok  |  7.1 | 23 degrees C
FAN1             | 41h | ok  | 29.1 | 5400 RPM
FAN2             | 42h | cr  | 29.2 | 300 RPM
Fan 3            | 43h | ok  | 29.3 | 25.60 percent
DIMM 5 Temp      | 44h | ns  | 32.5 | No Reading
PS1 Input Power  | 51h | ok  | 10.1 | 812 Watts
"""
SENSOR = """
Inlet Temp       | 23.000     | degrees C  | ok    | na        | -7.000    | 3.000     | 38.000    | 42.000    | na
FAN1             | 5400.000   | RPM        | ok    | na        | 300.000   | 500.000   | na        | na        | na
FAN2             | 300.000    | RPM        | lcr   | na        | 300.000   | 500.000   | na        | na        | na
DIMM 5 Temp      | na         | degrees C  | na    | na        | na        | na        | na        | na        | na
PS1 Status       | 0x1        | discrete   | 0x0100| na        | na        | na        | na        | na        | na
PS1 Input Power  | 812.000    | Watts      | ok    | na        | na        | na        | na        | na        | na
"""
CSV = """
Inlet Temp,23,degrees C,ok
FAN1,5400,RPM,ok
FAN2,300,RPM,cr
DIMM 5 Temp,,,ns
PS1 Input Power,812,Watts,ok
"""
BOTH_SUPPLIES = """
PS1 Status       | C8h | ok  | 10.1 | Presence detected
PS2 Status       | C9h | ok  | 10.2 | Presence detected, Power Supply AC lost
PS3 Status       | CAh | ns  | 10.3 | No Reading
"""


@pytest.mark.parametrize("text", [SDR, ELIST, SENSOR, CSV])
def test_every_layout_of_ipmitool_gives_the_same_sensors(text: str) -> None:
    sensors = {sensor.label: (sensor.kind, sensor.value, sensor.is_alarmed) for sensor in ipmi.read(text.splitlines())}
    sensors.pop("Fan 3", None)
    assert sensors == {
        "Inlet Temp": ("temperature", 23.0, False),
        "FAN1": ("fan", 5400.0, False),
        "FAN2": ("fan", 300.0, True),
        "PS1 Input Power": ("power", 812.0, False),
    }


def test_a_fan_in_percent_and_a_supply_without_current_are_read() -> None:
    assert Sensor("ipmi", "fan_percent", "Fan 3", 25.6, is_alarmed=False) in ipmi.read(ELIST.splitlines())
    assert ipmi.read(BOTH_SUPPLIES.splitlines()) == [
        Sensor("ipmi", "supply", "PS1 Status", 1.0, is_alarmed=False),
        Sensor("ipmi", "supply", "PS2 Status", 0.0, is_alarmed=True),
    ]


def install_ipmitool(root: Path, monkeypatch: pytest.MonkeyPatch, script: str) -> None:
    (root / "dev").mkdir()
    (root / "dev/ipmi0").touch()
    program = root / "ipmitool"
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{root}:{os.environ['PATH']}")


def test_readings_of_the_bmc_are_shown_until_they_are_stale(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "elist").write_text(ELIST)
    (tmp_path / "type").write_text(BOTH_SUPPLIES)
    install_ipmitool(tmp_path, monkeypatch, f'cat "{tmp_path}/$2"')
    now = 0.0
    read = chassis.Chassis(chassis.ChassisSettings(), tmp_path, monotonic=lambda: now)
    asyncio.run(read.read())
    page = host_page.render(NodeFacts(sensors=read.sensors()), "n1")
    assert 'watchkeeper_host_fan_rpm{chip="ipmi",sensor="FAN1",Hostname="n1"} 5400\n' in page
    assert 'watchkeeper_host_sensor_alarm{chip="ipmi",sensor="FAN2",Hostname="n1"} 1\n' in page
    assert 'watchkeeper_host_power_supply_ok{chip="ipmi",sensor="PS2 Status",Hostname="n1"} 0\n' in page
    now = chassis.STALE_SECONDS
    assert read.sensors() == ()


def test_an_unreachable_bmc_is_logged_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    install_ipmitool(tmp_path, monkeypatch, "echo Could not open device at /dev/ipmi0; exit 1")
    read = chassis.Chassis(chassis.ChassisSettings(), tmp_path)
    asyncio.run(read.read())
    asyncio.run(read.read())
    problems = [record.fields["error"] for record in caplog.records if record.message == "chassis sensor read failed"]
    assert len(problems) == 1
    assert "Could not open device" in problems[0]
    assert read.sensors() == ()


def test_a_node_without_a_bmc_or_with_ipmi_disabled_is_not_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    read = chassis.Chassis(chassis.ChassisSettings(), tmp_path)
    asyncio.run(read.read())
    install_ipmitool(tmp_path, monkeypatch, "exit 1")
    unwanted = chassis.Chassis(chassis.ChassisSettings(reads_ipmi=False), tmp_path)
    asyncio.run(unwanted.read())
    assert (read.sensors(), unwanted.sensors(), caplog.records) == ((), (), [])


def at(path: str) -> dict[str, str]:
    return {"@odata.id": f"/redfish/v1/Chassis{path}"}


OK, ABSENT = {"State": "Enabled", "Health": "OK"}, {"State": "Absent"}
OLDER: dict[str, dict[str, Any]] = {
    "": {"Members": [at("/1")]},
    "/1": {"Thermal": at("/1/Thermal"), "Power": at("/1/Power")},
    "/1/Thermal": {
        "Temperatures": [
            {"Name": "Inlet", "ReadingCelsius": 23, "UpperThresholdCritical": 42, "Status": OK},
            {"Name": "GPU 9", "ReadingCelsius": 0, "Status": ABSENT},
        ],
        "Fans": [
            {"FanName": "Fan1", "Reading": 5400, "ReadingUnits": "RPM", "Status": OK},
            {"Name": "Fan2", "Reading": 31, "ReadingUnits": "Percent", "Status": {"Health": "Critical"}},
            {"Name": "Fan3", "Reading": None, "Status": OK},
        ],
    },
    "/1/Power": {
        "PowerControl": [{"Name": "System", "PowerConsumedWatts": 5210.5}],
        "PowerSupplies": [{"Name": "PS1", "LastPowerOutputWatts": 801, "Status": OK}],
    },
}
NEWER: dict[str, dict[str, Any]] = {
    "": {"Members": [at("/1")]},
    "/1": {"ThermalSubsystem": at("/1/T"), "PowerSubsystem": at("/1/P"), "Thermal": at("/1/none")},
    "/1/T": {"Fans": at("/1/T/Fans"), "ThermalMetrics": at("/1/T/Metrics")},
    "/1/T/Fans": {"Members": [at("/1/T/Fans/1")]},
    "/1/T/Fans/1": {"Name": "Fan1", "SpeedPercent": {"Reading": 40, "SpeedRPM": 5400}, "Status": OK},
    "/1/T/Metrics": {
        "TemperatureReadingsCelsius": [{"DeviceName": "CPU0", "Reading": 51.5}],
        "TemperatureSummaryCelsius": {"Intake": {"Reading": 22.5}},
    },
    "/1/P": {"PowerSupplies": at("/1/P/S")},
    "/1/P/S": {"Members": [at("/1/P/S/1")]},
    "/1/P/S/1": {"Name": "PS1", "Status": {"Health": "Critical"}, "Metrics": at("/1/P/S/1/M")},
    "/1/P/S/1/M": {"InputPowerWatts": {"Reading": 0}},
}


def answer(resources: dict[str, dict[str, Any]], request: Heard) -> bytes:
    resource = resources.get(request.path.removeprefix("/redfish/v1/Chassis"))
    return reply(status=404) if resource is None else reply(json.dumps(resource))


def ask(resources: dict[str, dict[str, Any]]) -> tuple[list[tuple[str, str, float, bool | None]], list[Heard]]:
    async def story() -> tuple[tuple[Sensor, ...], list[Heard]]:
        async with serve(lambda request: answer(resources, request)) as server:
            access = Access(username="watch", password="keeper")
            return await chassis.read_redfish(server.origin, access), server.heard

    sensors, requests = asyncio.run(story())
    return [(sensor.kind, sensor.label, sensor.value, sensor.is_alarmed) for sensor in sensors], requests


def test_the_older_redfish_resources_are_read_and_absent_parts_are_not() -> None:
    sensors, requests = ask(OLDER)
    assert sensors == [
        ("temperature", "Inlet", 23.0, False),
        ("fan", "Fan1", 5400.0, False),
        ("fan_percent", "Fan2", 31.0, True),
        ("power", "System", 5210.5, None),
        ("supply", "PS1", 1.0, False),
        ("power", "PS1", 801.0, False),
    ]
    assert {request.headers["authorization"] for request in requests} == {"Basic d2F0Y2g6a2VlcGVy"}


def test_the_newer_redfish_resources_are_read() -> None:
    assert ask(NEWER)[0] == [
        ("fan", "Fan1", 5400.0, False),
        ("fan_percent", "Fan1", 40.0, False),
        ("temperature", "CPU0", 51.5, None),
        ("temperature", "Intake", 22.5, None),
        ("supply", "PS1", 0.0, True),
        ("power", "PS1", 0.0, None),
    ]


def test_a_bmc_cannot_redirect_the_agent_or_make_it_loop() -> None:
    with pytest.raises(CollectError, match="links to another host"):
        ask({"": {"Members": [{"@odata.id": "https://example.invalid/redfish/v1/Chassis/1"}]}})
    with pytest.raises(CollectError, match="more than 200 resources, the limit is 200"):
        ask({"": {"Members": [at("/1")] * 300}, "/1": {}})
    with pytest.raises(CollectError, match="answered 404"):
        ask({})


@pytest.mark.parametrize("content", ["", "user\n", "a:b\nc:d\n", ":secret\n"])
def test_credentials_are_one_line_with_user_and_password(tmp_path: Path, content: str) -> None:
    (tmp_path / "bmc").write_text(content)
    with pytest.raises(SettingsError, match="exactly one line `user:password`") as refused:
        chassis.load_access(tmp_path / "bmc")
    assert "secret" not in str(refused.value)
    (tmp_path / "bmc").write_text("admin:pass:word\n")
    access = chassis.load_access(tmp_path / "bmc")
    assert (access.username, access.password, access.insecure_skip_verify) == ("admin", "pass:word", False)


def test_a_bmc_must_have_a_trusted_certificate(tmp_path: Path) -> None:
    made = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
    made += ["-subj", "/CN=bmc", "-addext", "subjectAltName=IP:127.0.0.1", "-days", "2"]
    made += ["-keyout", f"{tmp_path}/key", "-out", f"{tmp_path}/cert"]
    if subprocess.run(made, capture_output=True, check=False).returncode != 0:
        pytest.skip("openssl is needed to make a certificate")
    own = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    own.load_cert_chain(tmp_path / "cert", tmp_path / "key")

    async def story() -> None:
        async with serve(lambda request: answer(OLDER, request), tls=own) as server:
            with pytest.raises(CollectError, match="certificate"):
                await chassis.read_redfish(server.origin, chassis.load_access(None))
            for access in (chassis.load_access(None, tmp_path / "cert"), chassis.load_access(None, is_insecure=True)):
                assert len(await chassis.read_redfish(server.origin, access)) == 6

    asyncio.run(story())


def test_an_endlessly_nested_answer_is_refused() -> None:
    async def story() -> None:
        async with serve(lambda _: reply("[" * 100_000)) as server:
            with pytest.raises(CollectError, match="the answer is not JSON"):
                await chassis.read_redfish(server.origin, chassis.load_access(None))

    asyncio.run(story())


LEAVES = st.none() | st.booleans() | st.integers() | st.text(max_size=8)
KEYS = st.sampled_from(["Temperatures", "Fans", "PowerControl", "PowerSupplies", "Status", "Name", "Reading", "Health"])
ANYTHING = st.recursive(LEAVES, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=4))


@given(st.dictionaries(KEYS, ANYTHING, max_size=5))
def test_no_resource_makes_the_reader_fail(resource: dict[str, object]) -> None:
    for read in (
        redfish.read_thermal,
        redfish.read_power,
        redfish.read_fan,
        redfish.read_thermal_metrics,
        redfish.read_supply,
    ):
        list(read(resource))
    redfish.member_links(resource)


@given(st.lists(st.sampled_from(["|", ",", " ", "FAN1", "PS1", "ok", "cr", "0x1", "5400 RPM", "na", "x"]), max_size=20))
def test_no_line_makes_the_parser_of_ipmitool_fail(parts: list[str]) -> None:
    ipmi.read(["".join(parts)])
