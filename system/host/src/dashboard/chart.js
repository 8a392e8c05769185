"use strict";
// The chart at the top of a page, and the sentence above it, for the page of this machine and that of a
// LAN: what they share. Rates that the page has seen, or the daemon's history, and the daemon's status
// go in.

const SVG = "http://www.w3.org/2000/svg";
const COLOURS = 8; // of networks, in page.css; the ninth network has the first again
const LINES = 6; // of the scale, about so many
const QUIET_BPS = 50e3; // below this, keep-alives and lookups: nothing that a person waits for
const MINUTE = 60, HOUR = 3600, DAY = 86400;
const KEPT = 300; // seconds of history on the page
const UNWRITTEN = 80; // seconds: a write of the history is due each 60, for steps of 10
const rates = new Map(); // name of a network -> [{ up, down }], bit/s, of the last minutes
const colours = new Map(); // name of a network -> number of its colour
let before; // what the daemon has kept of the minutes before the page was opened
let past; // what the daemon has kept of a longer span, where one is chosen

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

function element(tag, text, name) {
  const made = document.createElement(tag);
  if (text !== undefined) made.textContent = text;
  if (name) made.className = name;
  return made;
}

function bytes(count) {
  if (typeof count !== "number") return "–";
  if (count < 1e3) return `${count} B`;
  if (count < 1e6) return `${(count / 1e3).toFixed(1)} kB`;
  if (count < 1e9) return `${(count / 1e6).toFixed(1)} MB`;
  return `${(count / 1e9).toFixed(2)} GB`;
}

function since(seconds) {
  if (typeof seconds !== "number") return "";
  if (seconds < 60) return `${seconds} s`;
  if (seconds < 3600) return `${Math.floor(seconds / 60)} min`;
  return `${Math.floor(seconds / 3600)} h ${Math.floor((seconds % 3600) / 60)} min`;
}

// One shape for what a client, direct mode and a hub say of their networks.
function networks(status) {
  const sessions = status.sessions || [];
  const paths = sessions.flatMap((session) =>
    (session.paths || []).map((path) => ({ ...path, client: session.client })));
  if (status.role === "hub") {
    return paths.map((path) => ({
      ...path, name: `${path.client || "?"}: ${path.remote || path.name}`,
      kept: path.client ? `${path.client}: ${path.name}` : path.name,
    }));
  }
  return (status.networks || []).map((network) => {
    const path = paths.find((one) => network.path !== null && one.path === network.path);
    const unused = network.paused ? "paused" : network.over_quota ? "over quota" : "not used";
    const state = path ? path.state : network.state || (network.used ? "waiting" : unused);
    const wifi = network.wifi && network.wifi.ssid;
    const caps = network.cap_bps;
    return { ...network, ...path, state, caps, name: wifi ? `${network.name}: ${wifi}` : network.name, kept: network.name };
  });
}

// The colour of a network, by number; it keeps it while the page is open.
function colour(name) {
  if (!colours.has(name)) colours.set(name, colours.size % COLOURS);
  return colours.get(name);
}

// A square in the colour of a network.
function key(network) {
  const made = drawn("svg", { viewBox: "0 0 10 10", class: "key", "aria-hidden": "true" });
  made.append(drawn("rect", { width: 10, height: 10, rx: 2, class: `n${colour(network.name)}` }));
  return made;
}

// What a network carried before the page was opened, one point for each second; between the middles of
// two steps, the rate goes from one to the other.
function earlier(network) {
  const steps = before?.networks[network.kept];
  if (!steps?.length) return [];
  const middle = (step) => step[0] + before.step_s / 2 - (before.until - KEPT);
  let next = 0;
  return Array.from({ length: KEPT }, (_, second) => {
    while (next < steps.length && middle(steps[next]) < second) next += 1;
    const after = steps[next], last = steps[next - 1];
    if (!last) return second + before.step_s < middle(after) ? { up: 0, down: 0 } : { down: after[1], up: after[2] };
    // The newest steps are written once a minute; until then the last one that is known stands for them.
    if (!after) return second - middle(last) < UNWRITTEN ? { down: last[1], up: last[2] } : { up: 0, down: 0 };
    const length = middle(after) - middle(last);
    // Nothing is known of a gap.
    if (length > 3 * before.step_s) return { up: 0, down: 0 };
    const share = (second - middle(last)) / length;
    const between = (from, to) => from + (to - from) * share;
    return { down: between(last[1], after[1]), up: between(last[2], after[2]) };
  });
}

function remember(all) {
  const names = new Set(all.map((network) => network.name));
  for (const name of rates.keys()) {
    if (!names.has(name)) rates.delete(name);
  }
  for (const network of all) {
    colour(network.name);
    const points = rates.get(network.name) || earlier(network);
    points.push({ up: network.send_bps || 0, down: network.receive_bps || 0 });
    if (points.length > KEPT) points.shift();
    rates.set(network.name, points);
  }
}

// What is drawn of a network: each second of the last minutes, or each step of a longer span, and how
// many steps there is room for.
function pointsOf(network) {
  if (!past) {
    const points = rates.get(network.name) || [];
    return [points.map((point, at) => ({ ...point, place: KEPT - points.length + at })), KEPT];
  }
  const first = past.until - past.span, room = Math.ceil(past.span / past.step_s);
  const steps = past.networks[network.kept] || [];
  return [steps.map(([at, down, up]) => ({ place: Math.floor((at - first) / past.step_s), down, up })), room];
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

// A smooth line through the middles between points: it never leaves the range of its neighbours.
function smooth(points) {
  const at = ([x, y]) => `${x.toFixed(1)},${y.toFixed(1)}`;
  const middle = ([ax, ay], [bx, by]) => [(ax + bx) / 2, (ay + by) / 2];
  let path = `${at(points[0])}`;
  for (let i = 1; i < points.length - 1; i += 1) {
    path += ` Q${at(points[i])} ${at(middle(points[i], points[i + 1]))}`;
  }
  return `${path} L${at(points[points.length - 1])}`;
}

// Draws all networks stacked, received above the axis and sent below it, on one scale. What is drawn
// can be inspected: `svg.inspect` has the steps by place.
function drawChart(svg, all, room, labels) {
  const width = Math.max(svg.clientWidth, 200), height = Math.max(svg.clientHeight, 120);
  const left = 4, right = width - 4, top = 18, bottom = height - 20;
  const { down, up } = stacked(all, room);
  const most = (sums) => (sums.length ? Math.max(...sums[sums.length - 1]) : 0);
  const peaks = [Math.max(most(down), 1e3), most(up)];
  const line = rounded((peaks[0] + peaks[1]) / LINES);
  const above = Math.ceil(peaks[0] / line) * line, below = Math.max(Math.ceil(peaks[1] / line), 1) * line;
  const unit = (bottom - top) / (above + below), axis = top + above * unit;
  const x = (step) => left + ((right - left) * (step + 0.5)) / room;
  const y = (bps, direction) => (direction === "down" ? axis - bps * unit : axis + bps * unit);
  const made = [];
  for (let bps = -below; bps <= above; bps += line) {
    const at = bps >= 0 ? y(bps, "down") : y(-bps, "up");
    if (bps) made.push(drawn("line", { x1: left, x2: right, y1: at, y2: at, class: "grid" }));
  }
  const plot = drawn("g", { class: "plot" });
  for (const [direction, sums] of [["down", down], ["up", up]]) {
    sums.forEach((own, at) => {
      const under = at ? sums[at - 1] : new Float64Array(room);
      const edge = (of) => Array.from(of, (bps, step) => [x(step), y(bps, direction)]);
      const d = `M${smooth(edge(own))} L${smooth(edge(under).reverse())} Z`;
      plot.append(drawn("path", { d, class: `area n${all[at].colour} ${direction}` }));
    });
    if (sums.length) {
      const whole = Array.from(sums[sums.length - 1], (bps, step) => [x(step), y(bps, direction)]);
      plot.append(drawn("path", { d: `M${smooth(whole)}`, class: `sum ${direction}` }));
    }
  }
  made.push(plot, drawn("line", { x1: left, x2: right, y1: axis, y2: axis, class: "axis" }));
  for (let bps = -below; bps <= above; bps += line) {
    const at = bps >= 0 ? y(bps, "down") : y(-bps, "up");
    if (bps) made.push(drawn("text", { x: left + 4, y: at - 4 }, rate(Math.abs(bps)).replace(".0 ", " ")));
  }
  made.push(drawn("text", { x: right, y: top - 5, "text-anchor": "end" }, "received ↑"));
  made.push(drawn("text", { x: right, y: bottom - 4, "text-anchor": "end" }, "sent ↓"));
  // As many labels of the time as there is room for.
  const every = Math.max(1, Math.ceil((labels.length * 70) / (right - left)));
  labels.forEach(([place, text], at) => {
    if (at % every) return;
    const where = left + (right - left) * place;
    const anchor = place > 0.95 ? "end" : place < 0.05 ? "start" : "middle";
    made.push(drawn("text", { x: where, y: height - 5, "text-anchor": anchor }, text));
  });
  svg.setAttribute("viewBox", `0 0 ${width} ${height}`);
  svg.replaceChildren(...made);
  svg.inspect = { left, right, top, bottom, room, step: (right - left) / room, plot };
}

// Words joined as a sentence joins them.
function list(words) {
  return words.length < 2 ? words.join("") : `${words.slice(0, -1).join(", ")} and ${words[words.length - 1]}`;
}

// Why a network carries nothing, or less than it could; undefined where nothing says so.
function reason(network) {
  if (network.paused) return "is paused";
  if (network.over_quota) return "has used up its quota";
  if (network.portal) return "waits for its login page";
  if (network.state !== "active") return network.state === "waiting" ? "is being tested" : `is ${network.state}`;
  const use = network.use || {};
  const both = use.down === use.up ? use.down : undefined;
  if (both === "backup") return "is a backup";
  if (both === "overflow") return "is used when the others are full";
  if (use.bulk === false) return "is not used for bulk transfers";
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
    return `No hub answers: new connections leave outside the tunnel${over}; existing ones wait.`;
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
    return `There is almost no traffic; ${list(ready)} ${active.length > 1 ? "are" : "is"} ready${tail}`;
  }
  const carrying = active.filter((network) => load(network) >= 0.02 * whole)
    .sort((a, b) => load(b) - load(a));
  if (carrying.length === 1) {
    const idle = active.some((network) => !carrying.includes(network) && !reason(network));
    const why = idle ? ", which has enough capacity now and delivers first" : "";
    return `All traffic uses ${carrying[0].name}${why}${tail}`;
  }
  const shares = carrying.map((network) => `${network.name} ${Math.round((100 * load(network)) / whole)} %`);
  const why = status.role === "direct" ? "each connection stays on one network"
    : "each packet uses the network that delivers it first";
  return `${list(shares)}: ${why}${tail}`;
}
