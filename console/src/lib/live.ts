// The connection to the hub: the live socket, its messages, and reconnecting.

import { request } from "./api";
import { readFrame, withChange } from "./frames";
import type { FleetChange, Frame } from "./live_types";
import { getState, setState } from "./store";
import type { Card, Fleet, Status } from "./types";

let socket: WebSocket | undefined;
let retryMs = 500;
const DEFAULT_COLOUR = "sm_active";
/** Select the metric that the hub sends; groups such as team are coloured in the browser. */
export function chooseColour(colour: string): void {
  if (colour === getState().colour) return;
  setState({ colour });
  sendView();
}
const sendView = () => {
  if (socket?.readyState === WebSocket.OPEN)
    socket.send(JSON.stringify({ colour: getState().colour, edition: getState().fleet?.edition }));
};

/** Request the first answers and open the live socket at the same time. */
export function connect(): void {
  request<Status>("/api/status").then(
    (status) => setState({ status, updatedAt: getState().updatedAt ?? status.now, signIn: false }),
    () => undefined,
  );
  pendingFleet = undefined;
  refreshFleet();
  if (!getState().frame && getState().colour === DEFAULT_COLOUR) loadFirstFrame();
  socket = new WebSocket(`${location.protocol === "https:" ? "wss" : "ws"}://${location.host}/api/live`);
  socket.binaryType = "arraybuffer";
  socket.onopen = () => {
    retryMs = 500;
    setState({ link: "live", reconnects: getState().reconnects + Number(getState().link === "lost") });
    sendView();
  };
  socket.onmessage = ({ data }) =>
    typeof data === "string" ? applyMessage(JSON.parse(data)) : showFrame(data as ArrayBuffer);
  socket.onclose = () => {
    if (!getState().signIn) retry();
  };
}
/** Load the cached frame of the hub while the socket opens. */
async function loadFirstFrame(): Promise<void> {
  try {
    const answer = await fetch("/api/picture");
    const buffer = answer.status === 200 ? await answer.arrayBuffer() : null;
    if (buffer && !getState().frame) showFrame(buffer);
  } catch {
    /* The socket sends the next frame. */
  }
}
function retry(): void {
  setState({ link: "lost" });
  setTimeout(connect, retryMs);
  retryMs = Math.min(retryMs * 1.7, 8000);
}
interface IncidentsMessage {
  kind: "incidents";
  at: string;
  open: Card[];
  closed: Card[];
  open_total: number;
  has_more: boolean;
}
function applyMessage(message: FleetChange | IncidentsMessage): void {
  if (message.kind === "incidents") {
    const openTotal = { incidents: message.open_total, hasMore: message.has_more };
    setState({ open: message.open, openTotal, closed: message.closed, updatedAt: message.at });
  } else if (message.kind === "fleet") applyChange(message);
}
/** The fleet that belongs to the next frame, and the latest frame: both are shown together. */
let pendingFleet: Fleet | undefined;
let latestFrame: Frame | undefined;
function applyChange({ kind, since, ...news }: FleetChange): void {
  const base = pendingFleet ?? getState().fleet;
  if (news.edition === base?.edition) return;
  if (!base || since !== base.edition) {
    refreshFleet();
    return;
  }
  pendingFleet = withChange(base, news);
}
function showFrame(buffer: ArrayBuffer): void {
  const frame = readFrame(buffer);
  const state = getState();
  const fleet = pendingFleet ?? state.fleet;
  const matchesFleet = frame.version === fleet?.version;
  const keepsOldFrame =
    !matchesFleet && state.frame && latestFrame === state.frame && state.frame.version === state.fleet?.version;
  pendingFleet = undefined;
  latestFrame = frame;
  // While the fleet of a frame loads, keep the old map; at the next frame without it, show unknown.
  setState(keepsOldFrame ? { updatedAt: frame.at } : { fleet, frame, updatedAt: frame.at });
  if (!matchesFleet) refreshFleet();
}
// The cached fleet of the hub may be two minutes old but is sent at once; index.html preloads the same URL.
const READY_FLEET_PATH = "/api/fleet?max_age=120&workloads=0";
let isFetchingFleet = false;
/** Load the whole fleet: at the start, and if the change does not apply to the current one. */
function refreshFleet(): void {
  if (isFetchingFleet) return;
  isFetchingFleet = true;
  request<Fleet>(READY_FLEET_PATH)
    .then(
      (fleet) => {
        pendingFleet = undefined;
        setState({ fleet, frame: latestFrame });
        sendView();
      },
      () => setState({ frame: latestFrame }),
    )
    .finally(() => {
      isFetchingFleet = false;
    });
}

/** Refresh what may change while the page is open: readiness, degraded parts and rule files. */
export function refreshStatus(): void {
  if (getState().link === "live")
    request<Status>("/api/status").then(
      (status) => setState({ status }),
      () => undefined,
    );
}
