// The connection to the hub: the live socket, its messages, and reconnecting.

import { ask } from "./api";
import { readFrame, withNews } from "./frames";
import type { Frame, News } from "./live_types";
import { get, set } from "./store";
import type { Card, Fleet, Status } from "./types";

let socket: WebSocket | undefined;
let pause = 500;
const USUAL = "sm_active";
/** What the hub is asked to colour by; groups such as a team are coloured here, over the usual readings. */
export function chooseColour(colour: string): void {
  if (colour === get().colour) return;
  set({ colour });
  tell();
}
const tell = () => {
  if (socket?.readyState === WebSocket.OPEN)
    socket.send(JSON.stringify({ colour: get().colour, edition: get().fleet?.edition }));
};

/** The answers and the live socket are asked for at the same time: the first picture waits for neither. */
export function connect(): void {
  ask<Status>("/api/status").then(
    (status) => set({ status, heard: get().heard ?? status.now, signIn: false }),
    () => undefined,
  );
  coming = undefined;
  refreshFleet();
  if (!get().frame && get().colour === USUAL) firstPicture();
  socket = new WebSocket(`${location.protocol === "https:" ? "wss" : "ws"}://${location.host}/api/live`);
  socket.binaryType = "arraybuffer";
  socket.onopen = () => {
    pause = 500;
    set({ link: "live", returns: get().returns + Number(get().link === "lost") });
    tell();
  };
  socket.onmessage = ({ data }) => (typeof data === "string" ? hear(JSON.parse(data)) : see(data as ArrayBuffer));
  socket.onclose = () => {
    if (!get().signIn) retry();
  };
}
/** The picture that the hub has ready comes beside the other answers, while the socket is still being opened. */
async function firstPicture(): Promise<void> {
  try {
    const answer = await fetch("/api/picture");
    const picture = answer.status === 200 ? await answer.arrayBuffer() : null;
    if (picture && !get().frame) see(picture);
  } catch {
    /* The socket brings the next one. */
  }
}
function retry(): void {
  set({ link: "lost" });
  setTimeout(connect, pause);
  pause = Math.min(pause * 1.7, 8000);
}
function hear(message: News | { kind: "incidents"; at: string; open: Card[]; closed: Card[] }): void {
  if (message.kind === "incidents") set({ open: message.open, closed: message.closed, heard: message.at });
  else if (message.kind === "fleet") follow(message);
}
/** The fleet of the picture that comes next, and the picture that came last: both are shown together. */
let coming: Fleet | undefined;
let latest: Frame | undefined;
function follow({ kind, since, ...news }: News): void {
  const here = coming ?? get().fleet;
  if (news.edition === here?.edition) return;
  if (!here || since !== here.edition) {
    refreshFleet();
    return;
  }
  coming = withNews(here, news);
}
function see(buffer: ArrayBuffer): void {
  const frame = readFrame(buffer);
  const shown = get();
  const fleet = coming ?? shown.fleet;
  const fits = frame.version === fleet?.version;
  const isHeld = !fits && shown.frame && latest === shown.frame && shown.frame.version === shown.fleet?.version;
  coming = undefined;
  latest = frame;
  // While the fleet of a picture is fetched the map stays as it was; if that takes until the next picture, it says
  // unknown.
  set(isHeld ? { heard: frame.at } : { fleet, frame, heard: frame.at });
  if (!fits) refreshFleet();
}
// What the hub keeps ready may be a minute or two old, and comes at once; index.html asks for it before this code is
// here.
const READY = "/api/fleet?max_age=120&workloads=0";
let asking = false;
/** Fetch the whole fleet: at first, and where there is no news of what has changed since the one that is here. */
function refreshFleet(): void {
  if (asking) return;
  asking = true;
  ask<Fleet>(READY)
    .then(
      (fleet) => {
        coming = undefined;
        set({ fleet, frame: latest });
        tell();
      },
      () => set({ frame: latest }),
    )
    .finally(() => {
      asking = false;
    });
}

/** What may change while the page is open: readiness, and whether the rule files could be read. */
export function refreshStatus(): void {
  if (get().link === "live")
    ask<Status>("/api/status").then(
      (status) => set({ status }),
      () => undefined,
    );
}
