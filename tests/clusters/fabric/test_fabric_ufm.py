"""UFM as the source of the fabric: its documented and recorded shapes over HTTP, with TLS, secrets and bad answers."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
import ssl
import subprocess
import threading
from collections.abc import Iterator, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from watchkeeper.clusters.fabric import ufm
from watchkeeper.config import settings as config
from watchkeeper.errors import CollectError
from watchkeeper.model import fabric

LEAF, HOST = "248a070300f88fe0", "b8599f03000a77d0"
SYSTEMS = [
    {"guid": LEAF, "system_name": "leaf-a", "type": "switch", "state": "active", "ports": [f"{LEAF}_20", f"{LEAF}_21"]},
    {"guid": HOST, "system_name": "gpu-node-7", "type": "host", "state": "active", "ports": [f"{HOST}_1"]},
]
PORT = {
    "physical_state": "Link Up",
    "logical_state": "Active",
    "active_speed": "NDR",
    "active_width": "4x",
    "mtu": 4096,
}
PORTS: list[dict[str, Any]] = [
    {**PORT, "name": f"{LEAF}_20", "number": 20, "guid": LEAF, "systemID": LEAF, "peer": "N/A", "lid": 4},
    {**PORT, "name": f"{LEAF}_21", "number": 21, "guid": LEAF, "systemID": LEAF}
    | {"physical_state": "Polling", "logical_state": "Down", "active_speed": "N/A", "active_width": "N/A"},
    {**PORT, "name": f"{HOST}_1", "number": 1, "guid": HOST, "systemID": HOST, "dname": "HCA-1/1"}
    | {"node_description": "gpu-node-7 mlx5_0", "system_name": "gpu-node-7", "peer": f"{LEAF}_20"},
]
LINKS = [
    {"source_guid": LEAF, "source_port": "20", "destination_guid": HOST, "destination_port": "1", "width": "IB_4x"}
    | {
        "severity": "Info",
        "name": f"{LEAF}_20:{HOST}_1",
        "source_port_dname": "20",
        "destination_port_dname": "HCA-1/1",
    }
]
TELEMETRY = f"""# TYPE PortXmitDataExtended counter
PortXmitDataExtended{{source="0x1", node_guid="{LEAF}", port_guid="{LEAF}", port_num="20"}} 85554128244 1628683905941
SymbolErrorCounterExtended{{source="0x1", node_guid="{LEAF}", port_guid="{LEAF}", port_num="20"}} 17 1628683905941
Device_Temperature{{node_guid="{LEAF}", port_num="20"}} 41
rubbish
"""
LISTS: dict[str, Any] = {"systems": SYSTEMS, "ports": PORTS, "links": LINKS}


class Ufm(BaseHTTPRequestHandler):
    """Answers as UFM does: /ufmRest for a user, /ufmRestV3 for a token, telemetry without either."""

    lists: Mapping[str, Any] = LISTS
    wanted: Mapping[str, str] = {
        "/ufmRest": "Basic " + base64.b64encode(b"admin:secret").decode(),
        "/ufmRestV3": "Basic tok-1",
    }

    def do_GET(self) -> None:
        root, _, name = self.path.partition("/resources/")
        if self.path == "/metrics":
            self._say(200, TELEMETRY.encode())
        elif self.path == "/telemetry":
            self._say(200, self.lists["page"])
        elif self.headers.get("Authorization") != self.wanted.get(root):
            self._say(401, b"<html>no</html>")
        else:
            body = self.lists[name]
            self._say(200, body if isinstance(body, bytes) else json.dumps(body).encode())

    def _say(self, status: int, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Deliberately silent."""


@contextlib.contextmanager
def serving(lists: Mapping[str, Any] = LISTS, *, certificate: Path | None = None) -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("Served", (Ufm,), {"lists": lists}))
    if certificate is not None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certificate)
        server.socket = context.wrap_socket(server.socket, server_side=True)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield f"{'http' if certificate is None else 'https'}://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def ask(url: str, tmp_path: Path, **more: Any) -> fabric.Fabric:
    (tmp_path / "password").write_text("secret\n")
    (tmp_path / "token").write_text("tok-1\n")
    known = {"ufm_username": "admin", "ufm_password_file": str(tmp_path / "password")}
    given = more if "ufm_token_file" in more else {**known, **more}
    return asyncio.run(ufm.read_fabric(config.FabricSettings(ufm_url=url, timeout="30s", **given), at_ms=5))


def test_ufms_lists_become_the_fabric_with_leaves_rates_and_counters(tmp_path: Path) -> None:
    with serving() as url:
        found = ask(url, tmp_path, ufm_telemetry_url=f"{url}/metrics")
    layout = fabric.FabricTopology(found)
    assert (found.source, found.problems, found.unread, found.at_ms) == ("ufm", (), (), 5)
    assert layout.leaf_by_node() == {"gpu-node-7": "leaf-a"}
    port = layout.ports[LEAF, 20]
    # The switch did not name its peer; the list of links did.
    assert (port.state, port.gbps, port.peer) == ("Active", 400.0, (HOST, 1))
    assert port.counters == {"PortXmitData": 85554128244 // 4, "SymbolErrorCounter": 17}
    assert layout.ports[LEAF, 21].counters is None
    assert (layout.ports[LEAF, 21].state, layout.ports[LEAF, 21].gbps) == ("Down", None)


def test_a_token_is_sent_to_the_third_version_of_the_api(tmp_path: Path) -> None:
    with serving() as url:
        assert len(ask(url, tmp_path, ufm_token_file=str(tmp_path / "token")).ports) == 3


def test_wrong_credentials_are_said_without_showing_them(tmp_path: Path) -> None:
    (tmp_path / "other").write_text("hunter2")
    with serving() as url, pytest.raises(CollectError, match="401: the credentials are not accepted") as refused:
        ask(url, tmp_path, ufm_password_file=str(tmp_path / "other"))
    assert "hunter2" not in str(refused.value)


@pytest.mark.parametrize(
    "body", [b"<html>login</html>", b'{"error": 1}', b"[" * 100_000], ids=["html", "object", "deep"]
)
def test_an_answer_that_is_no_list_is_refused_with_its_address(body: bytes, tmp_path: Path) -> None:
    with serving({**LISTS, "ports": body}) as url, pytest.raises(CollectError, match="resources/ports"):
        ask(url, tmp_path)


def test_rows_that_make_no_sense_are_left_out_and_none_left_is_a_problem(tmp_path: Path) -> None:
    rows = [7, None, {"name": "x"}, {"name": f"{HOST}_1", "logical_state": "Active", "active_width": 4}]
    with serving({**LISTS, "ports": rows}) as url:
        assert len(ask(url, tmp_path).ports) == 1
    with serving({**LISTS, "ports": [{}]}) as url:
        assert ask(url, tmp_path).problems == ("UFM lists 2 systems and 1 ports, but none could be read",)


def test_shapes_that_published_clients_of_ufm_expect_are_read_as_well(tmp_path: Path) -> None:
    """Numbers as text, GUIDs with 0x, nulls for a dark port, the other end in columns of its own, a wrapped list."""
    leaf = {"name": "1/20", "number": "20", "guid": f"0x{LEAF}", "systemID": LEAF, "label": "20"}
    ends = {"peer_node_guid": f"0x{HOST}", "peer_port_dname": "HCA-1/1", "peer_node_name": "gpu-node-7"}
    dark = {"name": "1/21", "number": "21", "guid": f"0x{LEAF}", "systemID": LEAF, "active_speed": None}
    dark |= {"logical_state": "Inactive", "physical_state": "Link Down", "active_width": None, "peer_guid": "N/A"}
    rows = [{**PORT, **leaf, **ends}, dark, PORTS[2] | {"peer": None}]
    with serving({**LISTS, "ports": {"ports": rows}, "links": []}) as url:
        layout = fabric.FabricTopology(ask(url, tmp_path))
    assert layout.ports[LEAF, 20].peer == (HOST, 1)
    assert (layout.ports[LEAF, 21].state, layout.ports[LEAF, 21].gbps) == ("Down", None)


# What a recorded row has besides, and nobody here reads.
MORE: dict[str, Any] = {
    "external_number": 1,
    "high_ber_severity": "N/A",
    "mirror": "disable",
    "module": "N/A",
    "tier": 1,
}
MORE |= {"capabilities": ["healthy_operations"], "enabled_speed": ["SDR", "HDR"], "peer_ip": "0.0.0.0"}


def test_rows_as_the_ufm_sdk_has_recorded_them_become_leaves_hosts_and_links(tmp_path: Path) -> None:
    """Keys and values as in ufm_sdk_3.0's `topoparse/data/ufm_samples`; a host is one system with two adapters."""
    second = "b8599f03000a77e8"
    hca = {**PORT, **MORE, "active_speed": "HDR", "description": "Computer IB Port", "number": 1, "system_name": "n7"}
    rows = [
        {
            **hca,
            "guid": HOST,
            "name": f"{HOST}_1",
            "systemID": HOST,
            "node_description": "n7 mlx5_4",
            "dname": "HCA-1/1",
        }
        | {"peer": f"{LEAF}_6", "peer_guid": LEAF, "peer_node_guid": LEAF, "peer_port_dname": "6", "peer_lid": 651},
        {**hca, "guid": second, "name": f"{second}_1", "systemID": HOST, "node_description": "n7 mlx5_5"}
        | {"dname": "HCA-2/1", "peer": f"{LEAF}_7", "peer_guid": LEAF, "peer_node_guid": LEAF, "peer_port_dname": "7"},
        {**hca, "guid": LEAF, "name": f"{LEAF}_6", "systemID": LEAF, "node_description": "leaf-a:6", "number": 6}
        | {"description": "Switch IB Port", "dname": "6", "system_name": "leaf-a", "peer": f"{HOST}_1", "tier": 4},
    ]
    link = {"source_guid": LEAF, "source_port": "6", "destination_guid": HOST, "destination_port": "1", "width": "4x"}
    with serving({**LISTS, "ports": rows, "links": [{**link, "cable_info": {}, "capabilities": []}]}) as url:
        found = ask(url, tmp_path)
    layout = fabric.FabricTopology(found)
    assert layout.leaf_by_node() == {"n7": "leaf-a"}
    assert {device.guid: device.name for device in found.devices} == {
        LEAF: "leaf-a",
        HOST: "n7 mlx5_4",
        second: "n7 mlx5_5",
    }
    assert (layout.ports[second, 1].gbps, layout.ports[second, 1].peer) == (200.0, (LEAF, 7))


# The fast set, as ufm_sdk_3.0's PDR plugin reads it from csv/xcset.
FAST = f"""timestamp,source_id,tag,node_guid,port_guid,port_num,PortXmitDataExtended,LinkDownedCounterExtended,hist0
1709652347161873,0x{LEAF},,0x{LEAF},0x{LEAF},20,4086720,3,0
"""
# The slow set, whose labels have other names.
SLOW = f"""timestamp,Node_GUID,port_guid,Port_Number,Device_ID,node_description,Link_Down,Chip_Temp
1709652347161873,0x{LEAF},0x{LEAF},20,54000,"leaf-a, left",2,51
"""
# UFM's own monitoring attributes, as ufm_sdk_3.0's fluentd plugin has recorded them.
ATTRIBUTES = f"""node_guid,port_num,Infiniband_PckOut_u_Packets,Infiniband_RcvSwRelayErrors_u_Errors,Infiniband_CBW_f
0x{LEAF},20,14190,18,0.5
"""
# A port of a dual-port adapter, listed under its own GUID and not its adapter's.
PAGE = f"""PortUniCastRcvPktsExtended{{node_guid="0x1", port_guid="0x{LEAF}", port_num="20"}} 9 1628683905941
PortXmitWaitExtended{{node_guid="0x1", port_guid="0x{LEAF}", port_num="20"}} 18446744073709551615
PortRcvErrorsExtended{{node_guid="0x1", port_guid="0x{LEAF}", port_num="20"}} nan
"""


@pytest.mark.parametrize(
    ("page", "counters"),
    [
        (FAST, {"PortXmitData": 1021680, "LinkDownedCounter": 3}),
        (SLOW, {"LinkDownedCounter": 2}),
        (ATTRIBUTES, {"PortXmitPkts": 14190, "PortRcvSwitchRelayErrors": 18}),
        (PAGE, {"PortUnicastRcvPkts": 9, "PortXmitWait": 2**64 - 1}),
    ],
    ids=["fast-csv", "slow-csv", "attributes", "page"],
)
def test_telemetry_is_read_in_each_form_that_ufm_has(page: str, counters: dict[str, int], tmp_path: Path) -> None:
    with serving({**LISTS, "page": page.encode()}) as url:
        found = ask(url, tmp_path, ufm_telemetry_url=f"{url}/telemetry")
    assert found.unread == ()
    assert fabric.FabricTopology(found).ports[LEAF, 20].counters == counters


def test_telemetry_without_a_known_counter_is_said(tmp_path: Path) -> None:
    with serving({**LISTS, "page": b"Endpoint not found"}) as url:
        found = ask(url, tmp_path, ufm_telemetry_url=f"{url}/telemetry")
    assert found.unread[0].endswith("/telemetry returned 18 bytes without a supported counter")


def test_telemetry_that_is_away_costs_only_the_counters(tmp_path: Path) -> None:
    with serving() as url:
        found = ask(url, tmp_path, ufm_telemetry_url=f"{url}/away")
    assert found.problems == ()
    assert found.unread[0].startswith("no counters:")
    assert {port.counters for port in found.ports} == {None}


def test_a_certificate_nobody_vouches_for_is_refused_unless_it_is_named(tmp_path: Path) -> None:
    pem = tmp_path / "ufm.pem"
    made = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=ufm"]
    made += ["-addext", "subjectAltName=IP:127.0.0.1", "-keyout", str(tmp_path / "key"), "-out", str(tmp_path / "crt")]
    subprocess.run(made, check=True, capture_output=True)
    pem.write_text((tmp_path / "key").read_text() + (tmp_path / "crt").read_text())
    with serving(certificate=pem) as url:
        with pytest.raises(CollectError, match=r"(?i)certificate"):
            ask(url, tmp_path)
        assert len(ask(url, tmp_path, ufm_ca_file=str(tmp_path / "crt")).ports) == 3


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"sweep": True, "ufm_url": "http://u"}, "not both"),
        ({"ufm_username": "a"}, "are required together"),
        ({"ufm_url": "ufm.example"}, "not an http or https URL"),
        ({"ufm_token_file": "t", "ufm_username": "a", "ufm_password_file": "p"}, "not both"),
    ],
)
def test_settings_that_contradict_each_other_are_refused(given: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        config.FabricSettings(**given)
