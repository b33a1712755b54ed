"""Where it was, when only the shipper, the log store or the console says so."""

from __future__ import annotations

import json

import pytest

from tests.doctor.asking import ask, causes
from watchkeeper.readers.logs import shipped_documents

LOST = "NVRM: Xid (PCI:0000:c1:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus."
DULL = "usb 1-1: new high-speed USB device"
SHIPPED = {
    "logcli": f'2026-08-10T05:36:05Z {{filename="/var/log/kern.log", host="gpu07", job="varlogs"}} {LOST}',
    "logcli jsonl": json.dumps({"labels": {"nodename": "gpu07"}, "line": LOST, "timestamp": "2026-08-10T05:36:05Z"}),
    "fluent bit, no time": json.dumps({"host": "gpu07", "ident": "kernel", "message": LOST}),
    "fluent bit, seconds": json.dumps({"date": 1786340165.1, "host": "gpu07", "message": LOST}),
    "an address": json.dumps({"time": "2026-08-10T05:36:05Z", "host": "10.0.0.7", "message": LOST}),
    "elastic": json.dumps({"@timestamp": "2026-08-10T05:36:05Z", "host": {"name": "gpu07"}, "message": LOST}),
    "otel": json.dumps({"body": LOST, "resource": {"attributes": {"k8s.node.name": "gpu07"}}}),
    "datadog": json.dumps({"id": "a", "content": {"host": "gpu07", "message": LOST}}),
    "splunk": json.dumps({"preview": False, "result": {"_raw": LOST, "host": "gpu07"}}),
    "cloudwatch csv": f'timestamp,message\n1786340165101,"Aug 10 05:36:05 gpu07 kernel: [8.1] {LOST}"',
    "console csv": f'Date,Host,Service,Content\n2026-08-10T05:36:05Z,gpu07,kern,"{LOST}"',
    "azure csv": f'TimeGenerated,Computer,SyslogMessage\n2026-08-10T05:36:05Z,gpu07,"{LOST}"',
    "grafana csv": f'"Time","Line","labels"\n"2026-08-10 05:36:05","{LOST}","{{""hostname"":""gpu07""}}"',
    "graylog csv": f'"timestamp","source","message"\n"2026-08-10T05:36:05Z","gpu07","{LOST}"',
    "syslog-ng": json.dumps({"HOST": "gpu07", "PROGRAM": "kernel", "MESSAGE": LOST}),
    "an event inside": json.dumps({"msg": "sent", "events": [{"message": LOST, "nodeName": "gpu07"}]}),
    "journal export": f"_HOSTNAME=gpu07\nSYSLOG_IDENTIFIER=kernel\nMESSAGE={LOST}\n\n_HOSTNAME=gpu08\nMESSAGE=ok\n",
    "grep": f"messages:Aug 10 05:36:05 gpu07 kernel: {LOST}",
    "oc adm node-logs": f"gpu07.example.org Aug 10 05:36:05.123456 gpu07 kernel: {LOST}",
    "papertrail": f"Aug 10 05:36:05 gpu07 kernel {LOST}",
    "netconsole": f"10.0.0.7:6665 [12345.678901] {LOST}",
    "time twice": f"2026-08-10T05:36:05.1Z Aug 10 05:36:05 gpu07 kernel: {LOST}",
    "with a mark": f"\ufeffAug 10 05:36:05 gpu07 kernel: {LOST}",
}
ANSWERS = {
    "loki": {"data": {"result": [{"stream": {"hostname": "gpu07"}, "values": [["1786340165101000000", LOST]]}]}},
    "google": [{"jsonPayload": {"MESSAGE": LOST}, "resource": {"labels": {"node_name": "gpu07"}}}],
    "elasticsearch": {"hits": {"hits": [{"_source": {"message": LOST, "host": {"name": "gpu07"}}}]}},
    "aws": {"events": [{"timestamp": 1786340165101, "message": f"Aug 10 05:36:05 gpu07 kernel: {LOST}"}]},
    "azure": {"tables": [{"columns": [{"name": "Computer"}, {"name": "SyslogMessage"}], "rows": [["gpu07", LOST]]}]},
    "graylog": {"messages": [{"message": {"source": "gpu07", "message": LOST}}]},
    "insights": {"results": [[{"field": "@message", "value": LOST}, {"field": "host", "value": "gpu07"}]]},
}


@pytest.mark.parametrize("shipper", SHIPPED)
def test_the_node_is_named_whatever_shipped_the_line(shipper: str) -> None:
    answer = ask(SHIPPED[shipper] + "\n")
    assert causes(answer)[:1] == ["gpu_fell_off_bus"]
    assert answer.findings[0].where["node"] in ("gpu07", "10.0.0.7")


@pytest.mark.parametrize("store", ANSWERS)
@pytest.mark.parametrize("indent", [None, 2])
def test_the_answer_of_a_log_store_is_read_as_the_lines_it_has(store: str, indent: int | None) -> None:
    answer = ask(json.dumps(ANSWERS[store], indent=indent))
    assert causes(answer)[:1] == ["gpu_fell_off_bus"]
    assert answer.findings[0].where["node"] == "gpu07"


def test_of_several_streams_the_one_that_says_it_names_the_node() -> None:
    streams = [
        {"stream": {"hostname": node}, "values": [["1786340165101000000", line]]}
        for node, line in (("gpu06", DULL), ("gpu07", LOST), ("gpu08", DULL))
    ]
    answer = ask(json.dumps({"data": {"result": streams}}))
    assert answer.findings[0].where["node"] == "gpu07"


def test_an_entry_stands_on_the_line_on_which_its_text_is_written() -> None:
    document = json.dumps([{"message": DULL}, {"message": LOST}], indent=1)
    lines = (shipped_documents.read_lines(document.encode()) or b"").split(b"\n")
    assert [at for at, line in enumerate(document.split("\n")) if LOST in line] == [lines.index(LOST.encode())]


def test_the_error_file_of_torchrun_is_read() -> None:
    error = "OutOfMemoryError: CUDA out of memory. Tried to allocate 1.50 GiB. GPU 3 has a total capacity of 79.15 GiB"
    answer = ask(json.dumps({"message": {"message": error, "extraInfo": {"timestamp": "1786340165"}}}))
    assert (causes(answer)[:1], answer.findings[0].where["gpu"]) == (["cuda_oom"], 3)


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-le", "utf-16-be"])
def test_wide_text_is_read_with_and_without_its_mark(encoding: str) -> None:
    answer = ask(f"Aug 10 05:36:05 gpu07 kernel: {LOST}\r\n".encode(encoding))
    assert answer.findings[0].where["node"] == "gpu07"
