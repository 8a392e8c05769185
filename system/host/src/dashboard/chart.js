"use strict";
// The chart at the top of the page, and the sentence above it. Everything here is a function of what is
// handed in: the rates that the page has seen, or the daemon's history, and the daemon's status.

const SVG = "http://www.w3.org/2000/svg";
const COLOURS = 8; // of networks, in page.css; the ninth network has the first again
const LINES = 4; // of the scale, about so many
const QUIET_BPS = 50e3; // below this, keep-alives and lookups: nothing that a person waits for
const MINUTE = 60, HOUR = 3600, DAY = 86400;

function rate(bps) {
  if (typeof bps !== "number") return "–";
  if (bps < 1e3) return `${Math.round(bps)} bit/s`;
  if (bps < 1e6) return `${Math.round(bps / 1e3)} kbit/s`;
  if (bps < 1e9) return `${(bps / 1e6).toFixed(1)} Mbit/s`;
  return `${(bps / 1e9).toFixed(2)} Gbit/s`;
}

// The smallest of 1, 2 and 5 times a power of ten that `value` does not exceed.
function rounded(value) {
  const power = 10 ** Math.floor(Math.log10(value));
  return [1, 2, 5, 10].map((times) => times * power).find((one) => one >= value * 0.999);
}

// Labels of the time axis: [place from 0 to 1, text]. `span` in seconds; `until` in seconds since 1970,
// or undefined where the span ends now and counts backwards.
function timeLabels(span, until) {
  if (until === undefined) {
    const minutes = Math.floor(span / MINUTE);
    return Array.from({ length: minutes + 1 }, (_, back) =>
      [1 - (back * MINUTE) / span, back ? `−${back} min` : "now"]);
  }
  const clock = { hour: "2-digit", minute: "2-digit" };
  const [step, format] = span <= HOUR ? [10 * MINUTE, clock] : span <= DAY ? [4 * HOUR, clock]
    : span <= 7 * DAY ? [DAY, { weekday: "short" }] : [61 * DAY, { month: "short" }];
  const zone = new Date(until * 1e3).getTimezoneOffset() * MINUTE;
  const labels = [];
  for (let at = Math.floor((until - zone) / step) * step + zone; at > until - span; at -= step) {
    labels.push([1 - (until - at) / span, new Date(at * 1e3).toLocaleString(undefined, format)]);
  }
  return labels;
}

// Stacks what networks received and sent: for each step of the axis one list of sums for each direction,
// the first network's lowest. `all` is [{ points: [{ place, down, up }] }].
function stacked(all, room) {
  const sums = { down: [], up: [] };
  const under = { down: new Float64Array(room), up: new Float64Array(room) };
  for (const { points } of all) {
    for (const direction of ["down", "up"]) {
      const own = Float64Array.from(under[direction]);
      for (const point of points) {
        if (point.place >= 0 && point.place < room) own[point.place] += point[direction];
      }
      sums[direction].push(own);
      under[direction] = own;
    }
  }
  return sums;
}

function drawn(tag, attributes, text) {
  const made = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  if (text !== undefined) made.textContent = text;
  return made;
}

// Draws all networks stacked, received above the axis and sent below it, on one scale.
function drawChart(svg, all, room, labels) {
  const width = Math.max(svg.clientWidth, 200), height = Math.max(svg.clientHeight, 120);
  const left = 4, right = width - 4, top = 14, bottom = height - 18;
  const { down, up } = stacked(all, room);
  const most = (sums) => (sums.length ? Math.max(...sums[sums.length - 1]) : 0);
  const peaks = [Math.max(most(down), 1e3), most(up)];
  const line = rounded((peaks[0] + peaks[1]) / LINES);
  const above = Math.ceil(peaks[0] / line) * line, below = Math.max(Math.ceil(peaks[1] / line), 1) * line;
  const unit = (bottom - top) / (above + below), axis = top + above * unit;
  const x = (step) => left + ((right - left) * (step + 0.5)) / room;
  const y = (bps, direction) => (direction === "down" ? axis - bps * unit : axis + bps * unit);
  const made = [];
  for (const [direction, sums] of [["down", down], ["up", up]]) {
    sums.forEach((own, at) => {
      const under = at ? sums[at - 1] : new Float64Array(room);
      const there = Array.from(own, (bps, step) => `${x(step).toFixed(1)},${y(bps, direction).toFixed(1)}`);
      const back = Array.from(under, (bps, step) => `${x(step).toFixed(1)},${y(bps, direction).toFixed(1)}`);
      const points = there.concat(back.reverse()).join(" ");
      made.push(drawn("polygon", { points, class: `n${all[at].colour} ${direction}` }));
    });
  }
  for (let bps = -below; bps <= above; bps += line) {
    const at = bps >= 0 ? y(bps, "down") : y(-bps, "up");
    made.push(drawn("line", { x1: left, x2: right, y1: at, y2: at, class: bps ? "grid" : "axis" }));
    if (bps) made.push(drawn("text", { x: left, y: at - 2 }, rate(Math.abs(bps)).replace(".0 ", " ")));
  }
  made.push(drawn("text", { x: right, y: top - 3, "text-anchor": "end" }, "received ↑"));
  made.push(drawn("text", { x: right, y: bottom - 3, "text-anchor": "end" }, "sent ↓"));
  // As many labels of the time as there is room for.
  const every = Math.max(1, Math.ceil((labels.length * 70) / (right - left)));
  labels.forEach(([place, text], at) => {
    if (at % every) return;
    const where = left + (right - left) * place;
    const anchor = place > 0.95 ? "end" : place < 0.05 ? "start" : "middle";
    made.push(drawn("text", { x: where, y: height - 4, "text-anchor": anchor }, text));
  });
  svg.setAttribute("viewBox", `0 0 ${width} ${height}`);
  svg.replaceChildren(...made);
}

function list(words) {
  return words.length < 2 ? words.join("") : `${words.slice(0, -1).join(", ")} and ${words[words.length - 1]}`;
}

// Why a network carries nothing, or less than it could; undefined where nothing says so.
function reason(network) {
  if (network.paused) return "is paused";
  if (network.over_quota) return "has used up its quota";
  if (network.portal) return "waits for its login page";
  if (network.state !== "active") return network.state === "waiting" ? "is being tried" : `is ${network.state}`;
  const use = network.use || {};
  const both = use.down === use.up ? use.down : undefined;
  if (both === "backup") return "is a backup";
  if (both === "overflow") return "is used when the others are full";
  if (use.bulk === false) return "carries no transfers";
  const caps = network.caps || {};
  return caps.down || caps.up ? "is capped" : undefined;
}

// One sentence that says why traffic is where it is.
function sentence(status, all) {
  const load = (network) => (network.send_bps || 0) + (network.receive_bps || 0);
  if (status.role === "hub") {
    const clients = (status.clients || []).filter((client) => client.connected).length;
    return clients === 1 ? "One client is connected." : `${clients || "No"} clients are connected.`;
  }
  const withoutHub = status.without_hub || {};
  if (withoutHub.state === "direct" || withoutHub.state === "returning") {
    const used = ((status.direct || {}).networks || [])
      .filter((network) => network.used && !["gone", "silent", "over quota"].includes(network.state))
      .map((network) => network.name);
    const over = used.length ? `, over ${list(used)}` : "";
    return `No hub answers: new connections go past it${over}; those that exist wait for it.`;
  }
  const active = all.filter((network) => network.state === "active");
  if (active.length === 0) {
    return all.length ? "No network works: connections wait until one does." : "There is no network.";
  }
  const whole = active.reduce((sum, one) => sum + load(one), 0);
  const others = all.filter((network) => reason(network))
    .map((network) => `${network.name} ${reason(network)}`);
  const tail = others.length ? `; ${list(others)}.` : ".";
  if (whole < QUIET_BPS) {
    const ready = active.map((network) => (typeof network.rtt_ms === "number"
      ? `${network.name} (${network.rtt_ms.toFixed(0)} ms)` : network.name));
    return `Almost nothing passes; ${list(ready)} ${active.length > 1 ? "are" : "is"} ready${tail}`;
  }
  const carrying = active.filter((network) => load(network) >= 0.02 * whole)
    .sort((a, b) => load(b) - load(a));
  if (carrying.length === 1) {
    const idle = active.some((network) => !carrying.includes(network) && !reason(network));
    const why = idle ? ": what passes now fits into it, and it delivers soonest" : "";
    return `Everything goes over ${carrying[0].name}${why}${tail}`;
  }
  const shares = carrying.map((network) => `${network.name} ${Math.round((100 * load(network)) / whole)} %`);
  const why = status.role === "direct" ? "each connection stays on one network"
    : "each packet takes the network that delivers it soonest";
  return `${list(shares)}: ${why}${tail}`;
}
