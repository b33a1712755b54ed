// Panels that the node page and the GPU page share: timeline and history.

import { Chip, Empty, Panel, Since } from "../../components/parts";
import { Strips } from "../../components/strips";
import { type Column, Table } from "../../components/table";
import { count, humanise } from "../../lib/format";
import { type History, historyLength } from "../../lib/marks";
import { placeStrips } from "../../lib/promql";
import { param, rangeMs, setParam, to } from "../../lib/router";
import type { GpuAnswer } from "./labels";

export function LayersPanel(p: {
  id: string;
  node: string;
  gpu: string | null;
  workloads: string[];
  address: URL;
  theme: string;
  marks: { at: string; label: string; tone: string }[];
  end: number;
}) {
  const from = Number(param(p.address, "from")) * 1000;
  const until = Number(param(p.address, "until")) * 1000;
  const isZoomed = from > 0 && until > from;
  const zoom = (a: number, b: number) => {
    setParam("from", String(Math.floor(a)));
    setParam("until", String(Math.ceil(b)));
  };
  const resetZoom = () => {
    setParam("from", null);
    setParam("until", null);
  };
  return (
    <Panel
      title="Timeline"
      hint="hardware, fabric and workload · marked: events, alerts, actions · drag to zoom"
      id="layers"
      side={
        isZoomed && (
          <button type="button" class="plain" data-testid="zoom-out" onClick={resetZoom}>
            Reset zoom
          </button>
        )
      }
    >
      <Strips
        id={p.id}
        name="Readings of hardware, fabric and workload"
        strips={placeStrips({ cluster: "", node: p.node, gpu: p.gpu, domain: null }, p.workloads)}
        omitsEmpty
        start={isZoomed ? from : p.end - rangeMs(p.address)}
        end={isZoomed ? until : p.end}
        marks={p.marks}
        theme={p.theme}
        band={42}
        zoom={zoom}
      />
    </Panel>
  );
}

/** `Xid 79`, or the kind of an event without a code. */
function eventName({ kind, code }: { kind: string; code: number | null }): string {
  return code == null ? humanise(kind) : `${kind === "xid" ? "Xid" : humanise(kind)} ${code}`;
}

export function HistoryPanel({ history, gpus, address }: { history?: History; gpus?: GpuAnswer[]; address: URL }) {
  type Row = History["events"][number];
  const index = (uuid: string | null) => (uuid ? (gpus?.find((g) => g.uuid === uuid)?.index ?? "?") : "–");
  const columns: Column<Row>[] = [
    { id: "at", title: "Time", value: (e) => e.at, cell: (e) => <Since at={e.at} />, class: "nowrap" },
    {
      id: "what",
      title: "Event",
      value: (e) => (e.code == null ? humanise(e.kind) : `${e.kind} ${e.code}`),
      cell: (e) => <Chip tone={e.severity}>{eventName(e)}</Chip>,
    },
    ...(gpus
      ? [
          {
            id: "gpu",
            title: "GPU",
            numeric: true,
            value: (e: Row) => index(e.gpu),
            cell: (e: Row) => (e.gpu ? <a href={to.gpu(e.gpu)}>{index(e.gpu)}</a> : "–"),
          },
        ]
      : []),
    { id: "meaning", title: "Meaning", value: (e) => e.meaning ?? "", cell: (e) => e.meaning ?? "–" },
    { id: "text", title: "Message", minor: true, value: (e) => e.text, cell: (e) => <code>{e.text}</code> },
  ];
  const summary = history?.counts
    .slice(0, 4)
    .map((c) => `${eventName(c)} ×${count(c.events)}`)
    .join(" · ");
  return (
    <Panel
      title="Xid and event history"
      hint={history && `${history.total ? summary : "none"} ${historyLength(history)}`}
      id="history"
    >
      <Table
        id="history-table"
        caption="Events, newest first"
        columns={columns}
        rows={history?.events}
        rowKey={(e) => e.id}
        rowTestId="history-row"
        address={address}
        param="hsort"
        maxRows={12}
        empty={
          <Empty title="No events">
            No event in the kernel log, the driver or the fabric {history && historyLength(history)}.
          </Empty>
        }
      />
    </Panel>
  );
}
