"use strict";
// What the page shows, from what the gateway answered. Names of networks and devices are strangers'
// words: they are written as text, never as markup. Nodes are made once and updated, so that the
// focus and what a screen reader reads stay where they are.

const by = (id) => document.getElementById(id);
const GIGA = 1e9, MEGA = 1e6;

function setText(node, text) {
  if (node.textContent !== text) node.textContent = text;
}

// Shows items in a parent: a node for each, known again by its key. `make` returns a node with its
// parts, `update` writes into them.
function keyed(parent, items, keyOf, make, update) {
  parent.known ||= new Map();
  const isInUse = parent.contains(document.activeElement);
  const there = new Set();
  items.forEach((item, at) => {
    const id = keyOf(item);
    let node = parent.known.get(id);
    if (!node) {
      node = make(item);
      parent.known.set(id, node);
    }
    update(node, item);
    there.add(id);
    const place = parent.children[at];
    // What somebody is about to press does not move away.
    if (!node.isConnected || (place !== node && !isInUse)) parent.insertBefore(node, place || null);
  });
  for (const [id, node] of parent.known) {
    if (there.has(id)) continue;
    node.remove();
    parent.known.delete(id);
  }
}

// A node with named parts: [name, tag, class] each, in its order.
function assembled(tag, name, parts) {
  const node = element(tag, undefined, name);
  node.parts = {};
  for (const [part, kind, kindOf] of parts) {
    node.parts[part] = element(kind, undefined, kindOf);
    node.append(node.parts[part]);
  }
  return node;
}

function pressable(text, label, click, name) {
  const made = element("button", text, name);
  made.type = "button";
  if (label) made.setAttribute("aria-label", label);
  made.addEventListener("click", () => click(made));
  return made;
}

// One line where a list has nothing.
function none(text) {
  return [{ none: text }];
}

function makeNone(item) {
  const made = element("li", item.none, "none help");
  return made;
}

// A bar from 0 to 1.
function gauge() {
  const bar = drawn("svg", { class: "gauge", viewBox: "0 0 100 1", preserveAspectRatio: "none", "aria-hidden": "true" });
  bar.append(drawn("rect", { width: 0, height: 1 }));
  return bar;
}

function fill(bar, share) {
  bar.firstChild.setAttribute("width", (100 * Math.min(Math.max(share, 0), 1)).toFixed(1));
}

const KINDS = [[/^(wl|hawser-w)/, "Wi-Fi"], [/^(ww|usb|rmnet|cdc)/, "Mobile"], [/^(ppp|dsl)/, "DSL"], [/^(eth|en|lan|wan|fiber)/, "Cable"], [/^sat/, "Satellite"]];

function kind(network) {
  if (network.neighbour) return "Neighbour";
  if (network.wifi) return "Wi-Fi";
  const found = KINDS.find(([pattern]) => pattern.test(network.kept));
  return found ? found[1] : "Network";
}

function title(network) {
  return (network.wifi && network.wifi.ssid) || network.kept;
}

function subtitle(network) {
  return title(network) === network.kept ? kind(network) : `${kind(network)} · ${network.kept}`;
}

// State of a network: a word and how good it is.
function standing(network) {
  if (network.paused) return ["paused", "wait"];
  if (network.state === "portal" || network.portal) return ["log in", "wait"];
  if (network.over_quota) return ["quota used up", "bad"];
  if (network.left_out) return ["check fails", "bad"];
  if (network.state === "active") {
    const use = (network.use || {}).down;
    return use === "backup" ? ["backup", "good"] : ["works", "good"];
  }
  if (network.state === "validating" || network.state === "waiting") return ["being tested", "wait"];
  return network.used ? ["no answer", "bad"] : ["not used", ""];
}

// Received and sent, each on one line.
function bothRates(one) {
  const whole = (bps) => rate(bps).replace(" ", "\u00a0");
  return `↓\u00a0${whole(one.receive_bps)} ↑\u00a0${whole(one.send_bps)}`;
}

function makeNetwork(network, actions) {
  const node = element("article", undefined, "card network");
  const stripe = drawn("svg", { class: "stripe", viewBox: "0 0 1 1", preserveAspectRatio: "none", "aria-hidden": "true" });
  stripe.append(drawn("rect", { width: 1, height: 1, class: `n${colour(network.name)}` }));
  const head = element("div", undefined, "network-head");
  const heading = element("h3");
  const small = element("small");
  const pill = element("p", undefined, "pill");
  const words = element("span");
  heading.append(words, small);
  head.append(heading, pill);
  const rates = element("p", undefined, "rates");
  const figures = element("dl", undefined, "figures");
  const bar = gauge();
  const quota = element("p", undefined, "help");
  const row = element("p", undefined, "row");
  node.append(stripe, head, rates, figures, bar, quota, row);
  node.parts = { words, small, pill, rates, figures, bar, quota, row };
  actions(network, row);
  return node;
}

function updateNetwork(node, network) {
  const { words, small, pill, rates, figures, bar, quota, row } = node.parts;
  row.update?.(network);
  setText(words, title(network));
  setText(small, subtitle(network));
  const [state, how] = standing(network);
  setText(pill, state);
  pill.className = `pill ${how}`;
  setText(rates, bothRates(network));
  const usage = network.usage || {};
  const caps = network.caps || {};
  const rows = [
    ["Round trip", typeof network.rtt_ms === "number" ? `${network.rtt_ms.toFixed(0)} ms` : ""],
    ["Loss", typeof network.loss === "number" ? `${(100 * network.loss).toFixed(1)} %` : ""],
    ["Signal", network.wifi && typeof network.wifi.signal_dbm === "number" ? `${network.wifi.signal_dbm} dBm` : ""],
    ["Capped at", caps.down || caps.up ? `${caps.down ? rate(caps.down) : "–"} down, ${caps.up ? rate(caps.up) : "–"} up` : ""],
    ["This month", typeof usage.total_bytes === "number" && typeof usage.quota_bytes !== "number" ? bytes(usage.total_bytes) : ""],
  ].filter(([, value]) => value);
  keyed(figures, rows.flatMap(([name, value]) => [{ tag: "dt", id: name, text: name }, { tag: "dd", id: `${name} value`, text: value }]),
    (item) => item.id, (item) => element(item.tag), (made, item) => setText(made, item.text));
  const has = typeof usage.quota_bytes === "number";
  bar.toggleAttribute("hidden", !has);
  quota.hidden = !has;
  if (has) {
    const share = usage.total_bytes / usage.quota_bytes;
    fill(bar, share);
    bar.setAttribute("class", `gauge ${share >= 1 ? "spent" : share >= 0.8 ? "low" : ""}`);
    setText(quota, `${bytes(usage.total_bytes)} of ${bytes(usage.quota_bytes)} used${usage.from ? `, since ${day(usage.from)}` : ""}`);
  }
}

function day(date) {
  const read = new Date(`${date}T12:00:00`);
  return Number.isNaN(read.getTime()) ? date : read.toLocaleDateString(undefined, { day: "numeric", month: "long" });
}

function deviceName(device) {
  return device.name || (device.addresses || [])[0] || device.address;
}

function deviceMonth(device) {
  return (device.month_sent || 0) + (device.month_received || 0);
}

function deviceState(device) {
  const limits = [device.limit_down_bps && `${rate(device.limit_down_bps)} down`, device.limit_up_bps && `${rate(device.limit_up_bps)} up`].filter(Boolean);
  if (device.paused) return "paused";
  if (limits.length) return `limited to ${limits.join(", ")}`;
  return typeof device.seen_s !== "number" ? "not connected" : device.seen_s < 300 ? "" : `idle for ${since(device.seen_s)}`;
}

function makeDevice(device, actions) {
  const node = element("li");
  const grow = element("span", undefined, "grow");
  const name = element("b"), small = element("small");
  grow.append(name, small);
  const now = element("span", undefined, "number");
  const row = element("span", undefined, "row");
  const bar = gauge();
  node.append(grow, now, row, bar);
  node.parts = { name, small, now, row, bar };
  if (actions) actions(device, node);
  return node;
}

function updateDevice(node, device, whole) {
  const { name, small, now, bar } = node.parts;
  setText(name, deviceName(device));
  const words = [deviceState(device), (device.addresses || [])[0], `${bytes(deviceMonth(device))} this month`];
  setText(small, words.filter((word) => word && word !== deviceName(device)).join(" · "));
  setText(now, bothRates(device));
  fill(bar, whole ? deviceMonth(device) / whole : 0);
  if (node.update) node.update(device);
}

function makeEvent(event) {
  const node = element("li");
  const dot = element("span", undefined, `dot ${event.kind}`);
  dot.setAttribute("aria-hidden", "true");
  const at = new Date(event.at * 1e3);
  const time = element("time", clockOf(at));
  time.dateTime = at.toISOString();
  const text = element("span", event.by ? `${event.text}, by ${event.by}` : event.text, "grow");
  node.append(dot, text, time);
  return node;
}

function clockOf(at) {
  const clock = at.toLocaleTimeString(undefined, { hour: "2-digit", minute: "2-digit" });
  const isToday = at.toDateString() === new Date().toDateString();
  return isToday ? clock : `${at.toLocaleDateString(undefined, { day: "numeric", month: "short" })}, ${clock}`;
}

const SERVICES = { 22: "SSH", 25: "mail", 53: "names", 80: "web", 123: "time", 443: "web", 587: "mail", 993: "mail", 3389: "Remote Desktop", 5060: "calls" };
const several = (value) => (value === undefined || value === null ? [] : [].concat(value)).map(String);

// A rule of the configuration in a sentence.
function ruleInWords(rule, nameOf) {
  const ports = several(rule.port);
  const services = ports.map((port) => (SERVICES[port] ? `${port} (${SERVICES[port]})` : port));
  const protocol = rule.protocol ? `${rule.protocol.toUpperCase()} connections` : "Connections";
  const parts = [protocol];
  if (rule.from) parts.push(`from ${list(several(rule.from).map(nameOf))}`);
  if (rule.domain) parts.push(`to ${list(several(rule.domain))}`);
  if (rule.to) parts.push(`to ${list(several(rule.to))}`);
  if (ports.length) parts.push(`on port ${list(services)}`);
  if (rule.cgroup) parts.push(`of the programs in ${rule.cgroup}`);
  if (rule.dscp !== undefined && rule.dscp !== null) parts.push(`marked ${rule.dscp}`);
  const where = [];
  const networks = several(rule.network);
  if (rule.via === "direct") where.push("go outside the tunnel");
  else if (rule.via === "hub") where.push("go through the hub");
  else if (rule.via === "faster") where.push("go through the hub or outside the tunnel, whichever is faster");
  else if (rule.hub) where.push(`go through the hub ${rule.hub}`);
  if (networks.length) where.push(`${where.length ? "over" : "use"} ${networks.join(", else ")}`);
  if (rule.spread) where.push(`spread by ${rule.spread}`);
  if (rule.strict) where.push("and over no other network");
  if (rule.deadline) where.push(`have a deadline of ${rule.deadline}`);
  if (rule.tcp === "stream") where.push("use all networks at once");
  if (rule.tcp === "end-to-end") where.push("are end-to-end");
  const when = rule.when ? ` (when ${Object.entries(rule.when).map(([key, value]) => `${key.replaceAll("_", " ")}: ${value}`).join(", ")})` : "";
  return `${parts.join(" ")} ${where.join(" ")}${when}.`;
}
