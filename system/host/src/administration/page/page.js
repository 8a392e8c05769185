"use strict";
// Asks the gateway and applies what a person wants of it. The session is a cookie that scripts cannot
// read; each change carries the session's token beside it.

const VIEWS = ["now", "networks", "devices", "wifi", "more"];
const LANES = [
  ["always", "Used always"],
  ["overflow", "When the others are full"],
  ["backup", "As a backup"],
  ["never", "Not used"],
];
const SLOWLY = 5; // seconds between questions for devices, events and settings
let token, machine, isNew = false, view = "now";
let status_ = {}, devices = [], events = [], settings = {};
let trouble = "", round = 0, timer;

class Refused extends Error {
  constructor(status, text) {
    super(text.trim());
    this.status = status;
  }
}

async function get(path) {
  const answer = await fetch(`api/${path}`);
  if (!answer.ok) throw new Refused(answer.status, await answer.text());
  return answer.json();
}

async function post(path, body) {
  const fields = { "Content-Type": "application/json" };
  if (token) fields["X-Hawser-Token"] = token;
  const answer = await fetch(`api/${path}`, { method: "POST", headers: fields, body: JSON.stringify(body) });
  if (!answer.ok) throw new Refused(answer.status, await answer.text());
  return answer.json();
}

// A change by a button: what goes wrong is said at the top.
async function change(path, body) {
  try {
    const said = await post(path, body);
    const waits = said.needs_restart || [];
    trouble = waits.length ? `Saved. These settings apply after a restart of Hawser: ${waits.join(", ")}.` : "";
  } catch (error) {
    trouble = error.message;
    if (error.status === 401) return begin();
  }
  await look(true);
}

// ---- signing in

function showEnter() {
  clearTimeout(timer);
  by("nav").hidden = true;
  for (const name of VIEWS) by(name).hidden = true;
  by("enter").hidden = false;
  by("state").textContent = "";
  by("notices").replaceChildren();
  setText(by("enter-title"), isNew ? `Welcome to ${machine || "your gateway"}` : "Sign in");
  setText(by("enter-text"), isNew
    ? "Set the password of this page. The code shows that you own the gateway."
    : "The password of this page, which its first visitor set.");
  by("code-row").hidden = by("repeat-row").hidden = !isNew;
  by("code").required = by("repeat").required = isNew;
  setText(by("password-label"), isNew ? "A password of 8 letters or more" : "Password");
  by("password").autocomplete = isNew ? "new-password" : "current-password";
  by("password").minLength = isNew ? 8 : 0;
  setText(by("enter-button"), isNew ? "Set the password" : "Sign in");
  by(isNew ? "code" : "password").focus();
}

by("enter-form").addEventListener("submit", async (event) => {
  event.preventDefault();
  const password = by("password").value;
  if (isNew && password !== by("repeat").value) {
    setText(by("enter-error"), "The two passwords differ.");
    return by("repeat").focus();
  }
  by("enter-button").disabled = true;
  try {
    const session = isNew ? await post("setup", { code: by("code").value, password }) : await post("sign-in", { password });
    token = session.token;
    isNew = false;
    by("enter-form").reset();
    setText(by("enter-error"), "");
    by("enter").hidden = true;
    start();
    by("main").focus();
  } catch (error) {
    setText(by("enter-error"), `${error.message.charAt(0).toUpperCase()}${error.message.slice(1)}.`);
    by(isNew ? "code" : "password").focus();
  }
  by("enter-button").disabled = false;
});

async function begin() {
  token = undefined;
  try {
    const session = await get("session");
    ({ token, machine, is_new: isNew } = session);
    setText(by("machine"), machine || "");
    document.title = `Hawser · ${machine}`;
    by("about").dataset.version = session.version;
    if (!session.signed_in) return showEnter();
    start();
  } catch {
    trouble = "This gateway does not answer.";
    showNotices();
    setTimeout(begin, 2000);
  }
}

async function start() {
  by("nav").hidden = false;
  show();
  try { before = await get(`history?seconds=${KEPT}`); } catch { before = undefined; }
  keepLooking();
}

// ---- looking

async function look(isAll) {
  const state = await get("state");
  status_ = state;
  if (isAll || round % SLOWLY === 0) {
    const [listed, happened, set] = await Promise.all(
      [get("devices").catch(() => ({ devices: [] })), get("events"), get("settings")]);
    ({ devices } = listed);
    ({ events } = happened);
    settings = set;
  }
  render();
}

// What was shown stays when the gateway does not answer; a page that is out of sight asks nothing.
async function keepLooking() {
  clearTimeout(timer);
  try {
    if (!document.hidden) {
      await look(false);
      round += 1;
    }
  } catch (error) {
    if (error.status === 401) return begin();
    by("state").textContent = "no answer";
    by("state").className = "pill bad";
  }
  timer = setTimeout(keepLooking, 1000);
}

async function lookBack() {
  const span = Number(by("span").value);
  try {
    past = span ? { ...await get(`history?seconds=${span}`), span } : undefined;
  } catch (error) {
    past = undefined;
    trouble = error.message;
  }
  render();
}

by("span").addEventListener("change", lookBack);
setInterval(() => { if (past && !document.hidden && token) lookBack(); }, 10000);

// ---- showing

function show() {
  const wanted = location.hash.slice(1);
  view = VIEWS.includes(wanted) ? wanted : "now";
  for (const name of VIEWS) by(name).hidden = name !== view;
  for (const link of by("nav").children) {
    if (link.hash === `#${view}`) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
  scrollTo(0, 0);
}

addEventListener("hashchange", () => {
  if (!token) return;
  show();
  render();
});

function showNotices() {
  const said = (status_.notice || "").split("; ").filter(Boolean);
  const all = [...(trouble ? [{ text: trouble, kind: "trouble" }] : []), ...said.map((text) => ({ text }))];
  keyed(by("notices"), all, (one) => one.text, (one) => {
    const made = element("p", one.text, one.kind);
    if (one.kind) made.setAttribute("role", "alert");
    return made;
  }, () => {});
}

function render() {
  const all = networks(status_);
  remember(all);
  const isUp = status_.state === "up";
  const working = all.filter((network) => network.state === "active").length;
  setText(by("state"), isUp ? `${working} network${working === 1 ? "" : "s"}` : status_.state === "connecting" ? "no hub answers" : "not running");
  by("state").className = `pill ${isUp ? "good" : "bad"}`;
  showNotices();
  if (view === "now") renderNow(all);
  if (view === "networks") renderNetworks(all);
  if (view === "devices") renderDevices();
  if (view === "wifi") renderWifi(all);
  if (view === "more") renderMore();
}

function renderNow(all) {
  const shown = all.map((network) => {
    const [points, room] = pointsOf(network);
    return { points, room, colour: colour(network.name) };
  });
  const room = shown[0]?.room || KEPT;
  drawChart(by("chart"), shown, room, past ? timeLabels(past.span, past.until) : timeLabels(KEPT));
  scroll();
  inspect();
  const sum = (field) => rate(all.reduce((whole, one) => whole + (one[field] || 0), 0));
  setText(by("sum-down"), sum("receive_bps"));
  setText(by("sum-up"), sum("send_bps"));
  setText(by("sentence"), sentence(status_, all.map((network) => ({ ...network, name: title(network) }))));
  by("chart").setAttribute("aria-label", `Rates of all networks: ${sum("receive_bps")} received, ${sum("send_bps")} sent`);
  keyed(by("legend"), all, (network) => network.name, (network) => {
    const node = element("li");
    const name = element("b", title(network)), share = element("span");
    node.append(key(network), name, share);
    node.parts = { share };
    return node;
  }, (node, network) => {
    const load = (one) => (one.send_bps || 0) + (one.receive_bps || 0);
    const whole = all.reduce((so, one) => so + load(one), 0);
    setText(node.parts.share, whole > QUIET_BPS ? `${Math.round((100 * load(network)) / whole)} %` : "");
  });
  keyed(by("now-networks"), all, (network) => network.name, (network) => makeNetwork(network, networkActions), updateNetwork);
  const busiest = devices.filter((device) => typeof device.seen_s === "number")
    .sort((a, b) => load(b) - load(a) || deviceMonth(b) - deviceMonth(a)).slice(0, 6);
  const whole = Math.max(...devices.map(deviceMonth), 1);
  showList("now-devices", busiest, "No device has used this gateway yet.", (device) => device.address,
    (device) => makeDevice(device), (node, device) => updateDevice(node, device, whole));
  showEvents("now-events", events.slice(0, 6));
  renderGuide(all);
}

// The live chart moves on by a step each second, evenly.
function scroll() {
  const { plot, step } = by("chart").inspect;
  if (past || matchMedia("(prefers-reduced-motion: reduce)").matches) return;
  plot.animate([{ transform: `translateX(${step}px)` }, { transform: "none" }], 1000);
}

const load = (device) => (device.send_bps || 0) + (device.receive_bps || 0);

// A list that says so when it has nothing.
function showList(id, items, empty, keyOf, make, update) {
  const all = items.length ? items : none(empty);
  keyed(by(id), all, (item) => (item.none ? "none" : keyOf(item)), (item) => (item.none ? makeNone(item) : make(item)),
    (node, item) => { if (!item.none) update(node, item); });
}

function showEvents(id, some) {
  showList(id, some, "No events yet.", (event) => `${event.at} ${event.text}`, makeEvent, () => {});
}

// The chart shows the rates of the moment under the pointer.
let pointer;
function inspect() {
  const tip = by("tip"), svg = by("chart"), shape = svg.inspect;
  svg.querySelector(".cross")?.remove();
  if (pointer === undefined || !shape) {
    tip.hidden = true;
    return;
  }
  const x = Math.min(Math.max(pointer, shape.left), shape.right);
  const step = Math.min(Math.floor((x - shape.left) / shape.step), shape.room - 1);
  svg.append(drawn("line", { class: "cross", x1: x, x2: x, y1: shape.top, y2: shape.bottom }));
  const rows = networks(status_).map((network) => {
    const [points] = pointsOf(network);
    const point = points.find((one) => one.place === step);
    return point && (point.down > 1e3 || point.up > 1e3) ? { network, point } : undefined;
  }).filter(Boolean);
  const ago = past ? new Date((past.until - past.span + step * past.step_s) * 1e3).toLocaleString(undefined, { weekday: "short", hour: "2-digit", minute: "2-digit" })
    : KEPT - 1 - step ? `${KEPT - 1 - step} s ago` : "now";
  tip.replaceChildren(element("b", ago), ...rows.map(({ network, point }) => {
    const row = element("p");
    row.append(key(network), `${title(network)} ↓ ${rate(point.down)} ↑ ${rate(point.up)}`);
    return row;
  }));
  tip.hidden = false;
  const isRight = x > (shape.left + shape.right) / 2;
  tip.style.left = isRight ? "" : `${x + 12}px`;
  tip.style.right = isRight ? `${svg.clientWidth - x + 12}px` : "";
}

for (const kindOf of ["pointermove", "pointerdown"]) {
  by("chart").addEventListener(kindOf, (event) => {
    pointer = event.clientX - by("chart").getBoundingClientRect().left;
    inspect();
  });
}
by("chart").addEventListener("pointerleave", () => { pointer = undefined; inspect(); });
addEventListener("resize", () => { if (token) render(); });

// First steps: each is done by the state of the gateway, or dismissed by a person.
function renderGuide(all) {
  const guide = by("guide");
  const working = all.filter((network) => network.state === "active").length;
  const mobile = all.filter((network) => kind(network) === "Mobile");
  const unbounded = mobile.filter((network) => typeof (network.usage || {}).quota_bytes !== "number");
  const steps = [
    { text: "Set a password for this page", isDone: true },
    { text: working ? `${working} of ${all.length} networks work` : "Connect a network: a cable, a modem, or Wi-Fi", isDone: working > 0, to: "#networks", link: "Networks" },
    mobile.length ? { text: unbounded.length ? `Set the monthly quota of ${list(unbounded.map(title))}` : "Mobile networks have a quota", isDone: !unbounded.length, to: "#networks", link: "Set a quota" } : undefined,
    { text: "Join the Wi-Fi networks that you use often", isDone: (settings.wifi || []).length > 0, to: "#wifi", link: "Wi-Fi" },
    { text: "Give your devices names", isDone: devices.some((device) => device.name), to: "#devices", link: "Devices" },
  ].filter(Boolean);
  const isOver = localStorage.getItem("hawser-first-steps") === "done" || steps.every((step) => step.isDone);
  guide.hidden = isOver;
  if (isOver) return;
  if (!guide.parts) {
    const head = element("h2", "First steps"), items = element("ol");
    const done = pressable("Hide these steps", "", () => {
      localStorage.setItem("hawser-first-steps", "done");
      guide.hidden = true;
    });
    guide.replaceChildren(head, items, done);
    guide.parts = { items };
  }
  keyed(guide.parts.items, steps, (step) => `${step.to} ${step.link}`, (step) => {
    const node = element("li");
    const mark = element("span", "", "mark"), text = element("span", "", "grow");
    const link = element("a", step.link, "button");
    link.href = step.to || "#now";
    node.append(mark, text, link);
    node.parts = { mark, text, link };
    return node;
  }, (node, step) => {
    node.parts.link.hidden = step.isDone;
    node.className = step.isDone ? "done" : "";
    setText(node.parts.mark, step.isDone ? "✓" : "");
    setText(node.parts.text, step.isDone ? `Done: ${step.text}` : step.text);
  });
}

// ---- networks

function networkActions(network, row) {
  const name = title(network);
  const pause = pressable("Pause", "", () => {
    const now = networks(status_).find((one) => one.kept === network.kept);
    change("change", { change: "pause", network: network.kept, is_on: !now?.paused });
  });
  const set = pressable("Settings", `Settings of ${name}`, () => askNetwork(network.kept));
  const log = pressable("Log in", `Log in at ${name}`, () => openPortal(network.kept), "primary");
  if (network.neighbour) return;
  row.append(log, pause, set);
  row.update = (now) => {
    const isPortal = now.state === "portal";
    log.hidden = !isPortal;
    setText(pause, now.paused ? "Resume" : "Pause");
    pause.setAttribute("aria-label", `${now.paused ? "Resume" : "Pause"} ${name}`);
    pause.hidden = !(now.used || now.paused);
  };
}

function laneOf(network) {
  if ((settings.exclude || []).includes(network.kept)) return "never";
  const use = network.use || {};
  return use.down || "always";
}

function renderNetworks(all) {
  keyed(by("lanes"), LANES.filter(([lane]) => lane !== "never" || all.some((network) => laneOf(network) === lane)), ([lane]) => lane, ([, text]) => {
    const node = element("div");
    const cards = element("div", undefined, "cards");
    const empty = element("p", "None.", "help");
    node.append(element("h2", text), cards, empty);
    node.parts = { cards, empty };
    return node;
  }, (node, [lane]) => {
    const own = all.filter((network) => laneOf(network) === lane);
    node.parts.empty.hidden = own.length > 0;
    keyed(node.parts.cards, own, (network) => network.name, (network) => makeNetwork(network, networkActions), updateNetwork);
  });
}

// Asks in a dialog, and closes it when what was asked for has been applied.
function ask(id, heading, save) {
  const dialog = by(id), form = dialog.querySelector("form"), error = dialog.querySelector(".error");
  setText(dialog.querySelector("h2"), heading);
  setText(error, "");
  form.onsubmit = async (event) => {
    if (event.submitter?.value !== "set") return;
    event.preventDefault();
    event.submitter.disabled = true;
    try {
      await save();
      dialog.close();
      trouble = "";
      await look(true);
    } catch (refused) {
      setText(error, refused.message);
    }
    event.submitter.disabled = false;
  };
  dialog.showModal();
}

// A number of a field with a unit, as the configuration has it; nothing where it is empty.
function withUnit(id, unit) {
  const value = by(id).valueAsNumber;
  return Number.isFinite(value) ? `${value}${unit}` : "";
}

function askNetwork(kept) {
  const network = networks(status_).find((one) => one.kept === kept);
  if (!network) return;
  const set = (settings.networks || {})[kept] || {};
  const lane = laneOf(network);
  by(`use-${lane}`).checked = true;
  const caps = network.caps || {}, usage = network.usage || {};
  by("cap-down").value = caps.down ? caps.down / MEGA : "";
  by("cap-up").value = caps.up ? caps.up / MEGA : "";
  by("quota").value = usage.quota_bytes ? usage.quota_bytes / GIGA : "";
  by("reset-day").value = set.reset_day || "";
  by("quota-action").value = set.quota_action || "stop";
  ask("network-dialog", title(network), async () => {
    const use = document.querySelector("#network-dialog input[name=use]:checked").value;
    const quota = withUnit("quota", "GB");
    const wanted = {
      cap_down: withUnit("cap-down", "mbit"), cap_up: withUnit("cap-up", "mbit"), quota,
      reset_day: quota ? withUnit("reset-day", "") : "",
      quota_action: quota && by("quota-action").value !== "stop" ? by("quota-action").value : "",
      use: use === "always" || use === "never" ? "" : use,
    };
    if (use === "never") delete wanted.use;
    if ((use === "never") !== (lane === "never")) await post("edit", { edit: "use", network: kept, is_used: use !== "never" });
    await post("edit", { edit: "network", network: kept, settings: wanted });
  });
}

// The device that asks uses this network outside the tunnel for a while, so that its browser sees the
// network's login page.
async function openPortal(kept) {
  const network = networks(status_).find((one) => one.kept === kept);
  try {
    await post("change", { change: "log-in", network: kept });
    trouble = "";
    window.open(network?.portal || "http://neverssl.com/", "_blank", "noopener,noreferrer");
  } catch (refused) {
    trouble = `${refused.message}. On the gateway itself: sudo hawser login ${kept}`;
  }
  await look(true);
}

// ---- devices

function deviceActions(device, node) {
  const pause = pressable("Pause", "", () => change("edit", { edit: "device", address: device.address, settings: { paused: String(!node.isPaused) } }));
  const set = pressable("Settings", "", () => askDevice(device.address));
  node.parts.row.append(pause, set);
  node.update = (now) => {
    node.isPaused = now.paused;
    setText(pause, now.paused ? "Resume" : "Pause");
    pause.setAttribute("aria-label", `${now.paused ? "Resume" : "Pause"} ${deviceName(now)}`);
    set.setAttribute("aria-label", `Settings of ${deviceName(now)}`);
  };
}

function renderDevices() {
  const here = devices.filter((device) => typeof device.seen_s === "number" && device.seen_s < 300).length;
  const month = devices.reduce((whole, device) => whole + deviceMonth(device), 0);
  setText(by("devices-lead"), devices.length ? `${here} of ${devices.length} devices are connected. Together they have used ${bytes(month)} this month.` : "");
  const whole = Math.max(...devices.map(deviceMonth), 1);
  const sorted = [...devices].sort((a, b) => deviceMonth(b) - deviceMonth(a));
  showList("device-list", sorted, "No device has used this gateway yet.", (device) => device.address,
    (device) => makeDevice(device, deviceActions), (node, device) => updateDevice(node, device, whole));
}

function askDevice(address) {
  const device = devices.find((one) => one.address === address);
  if (!device) return;
  by("device-name").value = device.name || "";
  by("limit-down").value = device.limit_down_bps ? device.limit_down_bps / MEGA : "";
  by("limit-up").value = device.limit_up_bps ? device.limit_up_bps / MEGA : "";
  ask("device-dialog", deviceName(device), () => post("edit", {
    edit: "device", address,
    settings: { name: by("device-name").value, limit_down: withUnit("limit-down", "mbit"), limit_up: withUnit("limit-up", "mbit") },
  }));
}

// ---- Wi-Fi

function renderWifi(all) {
  const joined = all.filter((network) => network.wifi);
  by("wifi-none").hidden = joined.length > 0;
  keyed(by("wifi-joined"), joined, (network) => network.name, (network) => makeNetwork(network, networkActions), updateNetwork);
  showList("wifi-known", (settings.wifi || []).map((ssid) => ({ ssid })), "None in the configuration; networks that the system has saved are joined too.",
    (network) => network.ssid, (network) => {
      const node = element("li");
      node.append(element("b", network.ssid, "grow"), pressable("Forget", `Forget ${network.ssid}`, () => change("edit", { edit: "forget-wifi", ssid: network.ssid })));
      return node;
    }, () => {});
}

by("wifi-form").addEventListener("submit", async (event) => {
  event.preventDefault();
  const password = by("wifi-password").value;
  try {
    await post("edit", { edit: "join-wifi", ssid: by("ssid").value, password: password || null, hidden: by("hidden-ssid").checked });
    by("wifi-form").reset();
    setText(by("wifi-error"), "");
    await look(true);
  } catch (refused) {
    setText(by("wifi-error"), refused.message);
  }
});

// ---- more

function renderMore() {
  const nameOf = (address) => {
    const device = devices.find((one) => (one.addresses || []).includes(address));
    return device ? deviceName(device) : address;
  };
  const rules = (settings.rules || []).map((rule) => ruleInWords(rule, nameOf));
  const last = settings.kill_switch ? "All other traffic uses the hub, and no packet leaves while no hub answers."
    : settings.without_hub === "direct" ? "All other traffic uses the hub, or leaves outside the tunnel while no hub answers." : "All other traffic uses the hub, and waits while no hub answers.";
  showList("rules", [...rules, last].map((text) => ({ text })), "", (rule) => rule.text, (rule) => {
    const node = element("li");
    node.append(element("span", rule.text, "grow"));
    return node;
  }, () => {});
  const hubs = (status_.hubs || []).map((hub) => ({
    name: hub.name || (hub.endpoints || [])[0] || "hub", state: hub.in_use ? "in use" : hub.refused ? "rejects this gateway" : "ready",
    trip: typeof hub.round_trip_ms === "number" ? `${hub.round_trip_ms.toFixed(0)} ms` : "", at: (hub.endpoints || []).join(", "),
  }));
  showPairs("hubs", hubs, "No hub is known.", (hub) => [hub.at || hub.name, `${hub.state}${hub.trip ? ` · ${hub.trip}` : ""}`, hub.name]);
  const members = ((status_.pool || {}).members || []);
  showPairs("neighbours", members, "No neighbour's network is used.", (member) => [member.name || member.code || "neighbour", member.state || "", ""]);
  const about = [["Version", by("about").dataset.version || ""], ["Running for", since(status_.uptime_s)],
    ["Interface", `${status_.interface || ""} ${(status_.inner || []).join(" ")}`]];
  keyed(by("about"), about.flatMap(([name, value]) => [{ tag: "dt", id: name, text: name }, { tag: "dd", id: `${name} value`, text: value }]),
    (item) => item.id, (item) => element(item.tag), (made, item) => setText(made, item.text));
  showEvents("events", events);
}

function showPairs(id, items, empty, words) {
  showList(id, items, empty, (item) => words(item)[0], () => {
    const node = assembled("li", undefined, [["text", "span", "grow"], ["state", "span", "number"]]);
    node.parts.name = element("b");
    node.parts.small = element("small");
    node.parts.text.append(node.parts.name, node.parts.small);
    return node;
  }, (node, item) => {
    const [name, state, small] = words(item);
    setText(node.parts.name, name);
    setText(node.parts.state, state);
    setText(node.parts.small, small === name ? "" : small || "");
  });
}

by("password-form").addEventListener("submit", async (event) => {
  event.preventDefault();
  try {
    await post("password", { old: by("old").value, new: by("new").value });
    by("password-form").reset();
    setText(by("password-error"), "");
    begin();
  } catch (refused) {
    setText(by("password-error"), refused.message);
  }
});

by("sign-out").addEventListener("click", async () => {
  await post("sign-out", {}).catch(() => {});
  begin();
});

begin();
