"""InfiniBand and RoCE ports of one node, read from files of the test; node_exporter reads the same."""

from __future__ import annotations

import asyncio
import os
import re
import threading
import urllib.request
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests import servers
from tests.support.waiting import until_async
from watchkeeper.agent import agent, agent_server, fabric_page, port_counters
from watchkeeper.agent.fabric_page import FabricPage
from watchkeeper.agent.node_facts import Roots
from watchkeeper.catalogue import tables
from watchkeeper.kit import clock, commands
from watchkeeper.readers.fabric import infiniband_sysfs

IB = "sys/class/infiniband/mlx5_0"
ROCE = "sys/class/infiniband/mlx5_1"
GID = "fe80:0000:0000:0000:b8ce:f603:0000:0101"
COUNTERS = {family.file: 7 + at for at, family in enumerate(tables.counter_families().values()) if family.basic_bits}


def write(root: Path, files: dict[str, str]) -> None:
    for name, content in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content + "\n")


@pytest.fixture
def machine(tmp_path: Path) -> Path:
    port = {"state": "4: ACTIVE", "phys_state": "5: LinkUp", "rate": "400 Gb/sec (4X NDR)"}
    ib = {"fw_ver": "28.39.2048", "board_id": "MT_0000000838", "hca_type": "MT4129", "node_guid": "b8ce:f603:0000:0100"}
    roce = dict(ib)
    ib |= {f"ports/1/{name}": text for name, text in {**port, "link_layer": "InfiniBand"}.items()}
    ib |= {f"ports/1/counters/{name}": str(value) for name, value in COUNTERS.items()}
    ib |= {"ports/1/hw_counters/lifespan": "10", "ports/1/gids/0": GID, "ports/1/gid_attrs/types/0": "IB/RoCE v1"}
    ib |= {"ports/1/gids/1": "fe80:0000:0000:0000:0000:0000:0000:0000"}
    roce |= {f"ports/1/{name}": text for name, text in {**port, "link_layer": "Ethernet"}.items()}
    roce |= {"ports/1/counters/port_xmit_data": "0", "ports/1/hw_counters/out_of_buffer": "3"}
    roce |= {"ports/1/gids/3": "0000:0000:0000:0000:0000:ffff:0a00:0005"}
    roce |= {"ports/1/gid_attrs/types/3": "RoCE v2", "ports/1/gid_attrs/ndevs/3": "eth2", "device/net/eth2/x": ""}
    write(tmp_path / IB, ib)
    write(tmp_path / ROCE, roce)
    write(tmp_path, {"sys/class/net/eth2/mtu": "9000", "sys/class/net/eth2/carrier_changes": "4"})
    return tmp_path


def page_of(machine: Path, *, seconds: float = 30.0, **programs: str) -> FabricPage:
    """A page of the machine; each program is a shell script that the page finds first. What hangs gets `seconds`."""
    for name, script in programs.items():
        write(machine / "bin", {name: f"#!/bin/sh\n{script}"})
        (machine / "bin" / name).chmod(0o755)
    ask = commands.CommandRunner(seconds, environment={**os.environ, "PATH": f"{machine}/bin:/usr/bin:/bin"})
    return FabricPage(Roots(machine / "proc", machine / "sys", machine), "n1", ask, timeout_seconds=seconds)


def lines(page: FabricPage, now: float = 0.0) -> dict[str, str]:
    lines = (line.rsplit(" ", 1) for line in page.page(now).decode().splitlines() if not line.startswith("#"))
    return {name.replace(',Hostname="n1"', "").replace('Hostname="n1"', ""): value for name, value in lines}


def test_ports_have_node_exporters_names_and_units(machine: Path) -> None:
    page = page_of(machine)
    page.read_counters(0.0)
    shown = lines(page)
    where = '{device="mlx5_0",port="1"}'
    assert shown[f"node_infiniband_state_id{where}"] == "4"
    assert shown[f"node_infiniband_rate_bytes_per_second{where}"] == "50000000000"
    assert shown[f"node_infiniband_port_data_received_bytes_total{where}"] == str(4 * COUNTERS["port_rcv_data"])
    assert shown['node_infiniband_out_of_buffer_drops_total{device="mlx5_1",port="1"}'] == "3"
    assert not [name for name in shown if "lifespan" in name or ("symbol" in name and "mlx5_1" in name)]


@pytest.mark.servers
def test_node_exporter_shows_the_same_tree_in_the_same_way(machine: Path, tmp_path: Path) -> None:
    program, port = servers.require("node-exporter"), servers.free_port()
    line = [program, f"--web.listen-address=127.0.0.1:{port}", "--collector.disable-defaults"]
    line += ["--collector.infiniband", f"--path.sysfs={machine / 'sys'}"]
    url = f"http://127.0.0.1:{port}/metrics"
    with (
        servers.running(line, ready_url=f"http://127.0.0.1:{port}/", log=tmp_path / "log"),
        urllib.request.urlopen(url, timeout=60) as answer,
    ):
        text = answer.read().decode()
    theirs = dict(re.findall(r"^(node_infiniband_\S+) (\S+)$", text, re.MULTILINE))
    page = page_of(machine)
    page.read_counters(0.0)
    page.read_facts(0.0)
    ours = lines(page)
    assert len(theirs) > len(COUNTERS)
    assert {name: float(value) for name, value in theirs.items()} == {name: float(ours[name]) for name in theirs}


def test_a_wrapped_counter_continues_and_a_cleared_counter_restarts(machine: Path) -> None:
    counters = machine / IB / "ports/1/counters"
    page = page_of(machine)
    # 20 GB in five seconds is what a port of 400 Gb/s can do; the other counter was cleared by hand.
    for now, words, packets in ((0.0, (1 << 32) - 1_000, 500), (5.0, 5_000_000_000 - (1 << 32) - 1_000, 20)):
        (counters / "port_rcv_data").write_text(f"{words}\n")
        (counters / "port_rcv_packets").write_text(f"{packets}\n")
        page.read_counters(now)
    shown = lines(page, 5.0)
    where = '{device="mlx5_0",port="1"}'
    assert shown[f"node_infiniband_port_data_received_bytes_total{where}"] == str(4 * (5_000_000_000 - 1_000))
    assert shown[f"node_infiniband_port_packets_received_total{where}"] == "520"
    assert shown["watchkeeper_infiniband_counter_wraps_total{}"] == "1"
    assert shown["watchkeeper_infiniband_counter_resets_total{}"] == "1"


@given(st.lists(st.integers(0, (1 << 31) - 1), max_size=20), st.integers(0, (1 << 32) - 1))
def test_a_32_bit_counter_read_often_enough_loses_nothing(steps: list[int], start: int) -> None:
    growing, true = port_counters.CounterTotals(), start
    for at, step in enumerate([0, *steps]):
        true += step
        assert growing.add_reading("c", true % (1 << 32), at=float(at)).total == true


@given(st.lists(st.integers(0, 1 << 64), min_size=1, max_size=20))
def test_the_total_of_a_counter_never_decreases(raws: list[int]) -> None:
    growing = port_counters.CounterTotals()
    totals = [growing.add_reading("c", raw, at=float(at)).total for at, raw in enumerate(raws)]
    assert totals == sorted(totals)


def test_a_counter_that_stays_at_its_maximum_is_reported(machine: Path) -> None:
    page = page_of(machine)
    write(machine / IB, {"ports/1/counters/symbol_error": "65535", "ports/1/counters/link_downed": "254"})
    for now in (0.0, 5.0):
        page.read_counters(now)
    stuck = [name for name in lines(page, 5.0) if name.startswith("watchkeeper_infiniband_counter_at_maximum")]
    assert stuck == ['watchkeeper_infiniband_counter_at_maximum{device="mlx5_0",port="1",counter="symbol_error"}']


@pytest.mark.slow
def test_an_adapter_that_hangs_is_reported_and_the_others_are_read(machine: Path) -> None:
    stuck = machine / IB / "ports/1/counters/symbol_error"
    stuck.unlink()
    os.mkfifo(stuck)
    page = page_of(machine, seconds=1.5)
    for now in (0.0, 5.0):
        page.read_counters(now)
    shown = lines(page, 5.0)
    assert shown['watchkeeper_infiniband_read_stalled{device="mlx5_0"}'] == "1"
    assert shown['node_infiniband_state_id{device="mlx5_1",port="1"}'] == "4"
    assert 'node_infiniband_state_id{device="mlx5_0",port="1"}' not in shown
    (waiting,) = [thread for thread in threading.enumerate() if thread.name == "read mlx5_0"]
    with stuck.open("w") as pipe:
        stuck.unlink()
        stuck.write_text("5\n")
        pipe.write("5\n")
    waiting.join(60)
    page.read_counters(10.0)
    assert 'node_infiniband_state_id{device="mlx5_0",port="1"}' in lines(page, 10.0)


def test_stale_values_are_not_shown(machine: Path) -> None:
    page = page_of(machine)
    page.read_counters(0.0)
    assert lines(page, 30.0)
    assert not lines(page, 31.0)


def test_missing_or_invalid_files_are_absent_and_not_zero(machine: Path) -> None:
    folder = machine / IB / "ports/1"
    (folder / "state").write_text("?\n")
    (folder / "rate").unlink()
    (folder / "counters/symbol_error").write_text("N/A (no PMA)\n")
    (folder / "counters/link_downed").unlink()
    (folder / "counters/link_downed").symlink_to("nowhere")
    (port,) = infiniband_sysfs.read_ports(machine / "sys", "mlx5_0")
    assert (port.state_id, port.bytes_per_second) == (None, None)
    assert not {("counters", "symbol_error"), ("counters", "link_downed")} & port.counters.keys()
    assert infiniband_sysfs.read_ports(machine / "sys", "mlx5_9") == []


def test_gids_layers_and_mtu_of_a_port_are_shown(machine: Path) -> None:
    page = page_of(machine)
    page.read_facts(0.0)
    shown = lines(page)
    gids = [name for name in shown if name.startswith("watchkeeper_infiniband_gid_info")]
    assert len(gids) == 2
    assert 'type="RoCE v2",netdev="eth2"' in gids[1]
    assert 'index="0",gid="fe80:0000:0000:0000:b8ce:f603:0000:0101",type="IB/RoCE v1"' in gids[0]
    assert shown['watchkeeper_infiniband_netdev_mtu_bytes{device="mlx5_1",netdev="eth2"}'] == "9000"
    assert any('link_layer="Ethernet",netdev="eth2"' in name for name in shown)
    assert any(
        'board_id="MT_0000000838",device="mlx5_0",firmware_version="28.39.2048",hca_type="MT4129"' in name
        for name in shown
    )


def test_facts_that_cannot_be_read_any_more_are_removed_from_the_page(machine: Path) -> None:
    page = page_of(machine)
    page.read_facts(100.0)
    assert any("gid_info" in name for name in lines(page, 100.0 + fabric_page.FACTS_STALE_SECONDS))
    assert lines(page, 101.0 + fabric_page.FACTS_STALE_SECONDS) == {}
    page.read_facts(500.0)
    assert any("gid_info" in name for name in lines(page, 500.0))


@pytest.mark.slow
def test_pause_frames_come_from_ethtool_and_a_hung_one_affects_nothing_else(machine: Path) -> None:
    page = page_of(machine, ethtool="echo '     rx_prio3_pause: 12'; echo '     tx_prio3_pause_duration: 99'")
    page.read_facts(0.0)
    where = '{device="mlx5_1",netdev="eth2",priority="3",direction='
    shown = lines(page)
    assert shown[f'watchkeeper_infiniband_pause_frames_total{where}"received"}}'] == "12"
    assert shown[f'watchkeeper_infiniband_pause_microseconds_total{where}"transmitted"}}'] == "99"
    page = page_of(machine, seconds=1.5, ethtool="sleep 60")
    page.read_facts(0.0)
    assert not [name for name in lines(page) if "pause" in name]
    assert any("gid_info" in name for name in lines(page))


def test_pcie_errors_of_gpus_and_adapters_are_counted_by_severity(machine: Path) -> None:
    gpu, nic, disk = ("sys/bus/pci/devices/0000:" + name for name in ("18:00.0", "5d:00.1", "01:00.0"))
    write(machine / gpu, {"class": "0x030200", "vendor": "0x10de", "aer_dev_fatal": "DLP 0\nTOTAL_ERR_FATAL 0"})
    write(machine / gpu, {"aer_dev_correctable": "RxErr 0\nBadTLP 4\nTimeout 1\nTOTAL_ERR_COR 5"})
    write(machine / nic, {"class": "0x020700", "vendor": "0x15b3", "aer_dev_nonfatal": "TLP 2\nrubbish"})
    write(machine / disk, {"class": "0x010802", "vendor": "0x144d", "aer_dev_nonfatal": "TLP 9"})
    page = page_of(machine)
    page.read_facts(0.0)
    shown = {name: value for name, value in lines(page).items() if "aer" in name}
    total, by_kind = "watchkeeper_pcie_aer_errors_total", "watchkeeper_pcie_aer_kind_errors_total"
    where = 'pci="0000:18:00.0",kind="gpu",severity='
    assert shown == {
        f'{total}{{{where}"correctable"}}': "5",
        f'{total}{{{where}"fatal"}}': "0",
        f'{by_kind}{{{where}"correctable",error="BadTLP"}}': "4",
        f'{by_kind}{{{where}"correctable",error="Timeout"}}': "1",
        f'{total}{{pci="0000:5d:00.1",kind="nic",severity="nonfatal"}}': "2",
        f'{by_kind}{{pci="0000:5d:00.1",kind="nic",severity="nonfatal",error="TLP"}}': "2",
    }


def test_every_port_series_that_rules_and_the_simulator_use_is_on_the_agents_page() -> None:
    package = Path(tables.__file__).parents[1]
    texts = [path.read_text() for path in (package / "packs/rules").glob("*.yaml")]
    names = {name for text in texts for name in re.findall(r"\bnode_infiniband_\w+", text)}
    simulated = re.findall(
        r'"(?:node_infiniband_)?((?!node_)\w+_(?:total|id|per_second))"', (package / "sim/host.py").read_text()
    )
    names |= {f"node_infiniband_{name}" for name in simulated}
    assert len(names) > 8
    assert names <= fabric_page.FAMILIES.keys()


def test_the_agents_page_has_the_ports_of_its_node(machine: Path) -> None:
    async def page() -> bytes:
        stop, socket = asyncio.Event(), machine / "socket"
        settings = agent.AgentSettings(
            None,
            machine / "spool",
            node="n1",
            kmsg=machine / "no-kmsg",
            roots=Roots(machine / "proc", machine / "sys", machine),
            listen=agent_server.ListenSettings(socket=socket),
            reads_gpus=False,
        )

        async def page_with_ports() -> bytes:
            return text if b"node_infiniband_state_id" in (text := await fetch(socket)) else b""

        running = asyncio.create_task(agent.run(settings, clock.ScaledClock(), stop))
        try:
            return await until_async(page_with_ports)
        finally:
            stop.set()
            await running

    text = asyncio.run(page()).decode()
    assert 'node_infiniband_symbol_error_total{device="mlx5_0",port="1",Hostname="n1"} 7\n' in text


async def fetch(socket: Path) -> bytes:
    try:
        reader, writer = await asyncio.open_unix_connection(socket)
    except OSError:
        return b""
    writer.write(b"GET /metrics HTTP/1.1\r\nHost: n1\r\nConnection: close\r\n\r\n")
    text = await reader.read()
    writer.close()
    await writer.wait_closed()
    return text
