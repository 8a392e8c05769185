"use strict";
// Asks for the daemon's status each second and shows it. Names of networks are strangers' words: they
// are written as text, never as markup. Who came by the whole address, token and all, can pause and
// cap networks, say when they are used, and change schedulers and rules.

let trouble = ""; // why the last click did nothing
const MOST_FLOWS = 50;
const token = location.hash.slice(1);

const by = (id) => document.getElementById(id);

// Upwards what is received, downwards what is sent, on one scale.
function draw(canvas, points, room) {
  const scale = window.devicePixelRatio || 1;
  const width = canvas.clientWidth, height = canvas.clientHeight;
  canvas.width = width * scale;
  canvas.height = height * scale;
  const pen = canvas.getContext("2d");
  const style = getComputedStyle(document.documentElement);
  pen.scale(scale, scale);
  const most = Math.max(1e3, ...points.map((point) => Math.max(point.up, point.down)));
  const middle = height / 2, step = width / room;
  const bar = (value, x, direction) => {
    const length = (value / most) * (middle - 1);
    pen.fillRect(x, direction > 0 ? middle - length : middle, Math.max(step, 1), length);
  };
  for (const point of points) {
    const x = point.place * step;
    pen.fillStyle = style.getPropertyValue("--down");
    bar(point.down, x, 1);
    pen.fillStyle = style.getPropertyValue("--up");
    bar(point.up, x, -1);
  }
  pen.fillStyle = style.getPropertyValue("--line");
  pen.fillRect(0, middle, width, 1);
}

// Has something changed.
async function change(path) {
  const answer = await fetch(path, { method: "POST", headers: { "X-Hawser-Token": token } })
    .catch(() => undefined);
  trouble = answer && answer.ok ? "" : answer ? await answer.text() : "the dashboard does not answer";
  await look();
}

// A button that does something with a thing, which has a name and is known again by its key.
function button(does, name, key, click) {
  const made = element("button", does);
  made.type = "button";
  made.dataset.key = `${does} ${key}`;
  made.setAttribute("aria-label", `${does} ${name}`);
  made.addEventListener("click", () => click(made));
  return made;
}

// Who works by keyboard stays at the same button, also where it was made anew.
function focusOn(key) {
  if (key) document.querySelector(`button[data-key="${key}"]`)?.focus();
}

// What a network can be told; nothing where that is not this page's business.
function actions(network) {
  if (!token || network.index === undefined || !(network.used || network.paused)) return [];
  const does = network.paused ? "resume" : "pause";
  const of = (does, click) => button(does, network.name, network.index, click);
  const made = [of(does, (pressed) => {
    pressed.disabled = true;
    change(`${does}/${network.index}`);
  })];
  if (network.caps) made.push(of("cap", () => askCaps(network)));
  if (network.use) made.push(of("use", () => askUse(network)));
  return made;
}

// Asks for something; what was there is in the fields of the dialog, in their order.
function ask(what, title, now, wanted) {
  const dialog = by(what), fields = [...dialog.querySelectorAll("input, select")];
  const asker = document.activeElement?.dataset.key;
  by(`${what}-title`).textContent = title;
  fields.forEach((field, at) => { field.value = now[field.name || at] ?? ""; });
  dialog.returnValue = "";
  dialog.onclose = () => {
    if (dialog.returnValue === "set") change(wanted(fields));
    focusOn(asker);
  };
  dialog.showModal();
}

function askCaps(network) {
  const now = [network.caps.up, network.caps.down].map((cap) => (cap ? cap / 1e6 : ""));
  ask("cap", `Cap ${network.name}`, now, (fields) => {
    const [up, down] = fields.map((field) => Math.round(1e6 * (field.valueAsNumber || 0)));
    return `cap/${network.index}/${up}/${down}`;
  });
}

function askUse(network) {
  ask("use", `When ${network.name} is used`, [network.use.up, network.use.down],
    ([up, down]) => `use/${network.index}/${up.value}/${down.value}`);
}

function choices(select, values) {
  select.replaceChildren(...values.map(([value, text]) => {
    const made = element("option", text);
    made.value = value;
    return made;
  }));
}

function askScheduler(kind, now, names) {
  choices(by("scheduler-name"), names.map((name) => [name, name]));
  ask("scheduler", `Scheduler of ${kind} flows`, [now], ([name]) => `scheduler/${kind}/${name.value}`);
}

function askRule(status) {
  const hasHub = status.role === "client";
  const used = status.networks.filter((network) => network.used).map(({ name }) => [name, name]);
  // With a hub, a rule may leave the network open.
  choices(by("rule-network"), hasHub ? [["", "any"], ...used] : used);
  by("rule-via").parentElement.hidden = !hasHub;
  const network = hasHub ? "" : used[0]?.[0];
  ask("rule", "Add a rule", { network, via: hasHub ? "direct" : "" }, (fields) =>
    `rule/add?${new URLSearchParams(fields.map((field) => [field.name, field.value]))}`);
}

function showSchedulers(status) {
  const now = Object.entries((status.sessions || [])[0]?.schedulers || {});
  const names = status.scheduler_names;
  by("schedulers-section").hidden = !names || now.length === 0;
  by("schedulers").tBodies[0].replaceChildren(...now.map(([kind, name]) => {
    const does = token && names ? [button("change", `the scheduler of ${kind} flows`, kind,
      () => askScheduler(kind, name, names))] : [];
    return row([kind, name, does]);
  }));
}

function showRules(status) {
  const direct = status.role === "direct" ? status : status.direct;
  const rules = direct?.rules || [];
  by("rules-section").hidden = !["client", "direct"].includes(status.role);
  by("rules-none").textContent = !direct
    ? "None. If client.toml has a [[rule]] with via = \"direct\" or \"faster\" at the start, rules can be added here."
    : rules.length ? "" : "None.";
  by("rules").hidden = rules.length === 0;
  by("rules").tBodies[0].replaceChildren(...rules.map((rule) => {
    const isOurs = token && typeof rule.number === "number";
    return row([rule.rule, rule.way, rule.holds ? "yes" : "no", isOurs
      ? [button("remove", `the rule for ${rule.rule}`, `rule ${rule.number}`, () => change(`rule/remove/${rule.number}`))]
      : []]);
  }));
  by("rules-actions").replaceChildren(...(token && direct
    ? [button("add", "a rule", "rule", () => askRule(status))] : []));
}

function card(network, whole) {
  const made = element("article", undefined, "card");
  const title = element("h3", network.name);
  title.prepend(key(network), " ");
  const isGood = network.state === "active";
  title.append(" ", element("span", network.state || "", isGood ? "good" : "bad"), ...actions(network));
  const canvas = element("canvas");
  canvas.setAttribute("role", "img");
  canvas.setAttribute("aria-label",
    `${network.name}: receives ${rate(network.receive_bps)}, sends ${rate(network.send_bps)}`);
  const list = element("dl");
  const share = whole > 0 ? `${Math.round((100 * ((network.send_bps || 0) + (network.receive_bps || 0))) / whole)} %` : "–";
  const usage = network.usage || {};
  const rows = [
    ["down", rate(network.receive_bps), "down"],
    ["up", rate(network.send_bps), "up"],
    ["share", share],
    ["round trip", typeof network.rtt_ms === "number" ? `${network.rtt_ms.toFixed(1)} ms` : "–"],
    ["loss", typeof network.loss === "number" ? `${(100 * network.loss).toFixed(1)} %` : "–"],
  ];
  const caps = network.caps || {};
  for (const [name, cap] of [["cap down", caps.down], ["cap up", caps.up]]) {
    if (cap) rows.push([name, rate(cap)]);
  }
  const use = network.use || {};
  for (const [name, when] of [["use down", use.down], ["use up", use.up]]) {
    if (when && when !== "always") rows.push([name, when]);
  }
  if (use.bulk === false) rows.push(["transfers", "elsewhere"]);
  if (typeof usage.total_bytes === "number") {
    const quota = typeof usage.quota_bytes === "number" ? ` of ${bytes(usage.quota_bytes)}` : "";
    rows.push(["this month", bytes(usage.total_bytes) + quota]);
  }
  for (const [name, value, kind] of rows) list.append(element("dt", name), element("dd", value, kind));
  made.append(title, canvas, list);
  if (network.tls && network.tls.said) made.append(element("p", network.tls.said));
  return [made, canvas];
}

// A row of texts, and of lists of what else stands in a cell.
function row(cells) {
  const made = element("tr");
  for (const cell of cells) {
    const isText = !Array.isArray(cell);
    const place = element("td", isText ? cell : undefined);
    if (!isText) place.append(...cell);
    made.append(place);
  }
  return made;
}

// The bar of a flow: which networks carried how much of it.
function carriers(flow, all) {
  const carried = (flow.by_path || []).map(([path, sent]) => [all.find((one) => one.path === path), sent])
    .filter(([network, sent]) => network && sent > 0);
  const whole = carried.reduce((sum, [, sent]) => sum + sent, 0);
  if (!whole) return "";
  const shares = carried.map(([network, sent]) => [network, sent / whole]);
  const words = shares.map(([network, share]) => `${network.name} ${Math.round(100 * share)} %`).join(", ");
  const bar = drawn("svg", { class: "bar", viewBox: "0 0 100 10", preserveAspectRatio: "none", role: "img", "aria-label": words });
  bar.append(drawn("title", {}, words));
  let from = 0;
  for (const [network, share] of shares) {
    bar.append(drawn("rect", { x: 100 * from, width: 100 * share, y: 0, height: 10, class: `n${colour(network.name)}` }));
    from += share;
  }
  return [bar];
}

// All networks in one chart, with their sum, and why traffic is where it is.
function showChart(status, all) {
  const shown = all.map((network) => {
    const [points, room] = pointsOf(network);
    return { points, room, colour: colour(network.name) };
  });
  const room = shown[0]?.room || KEPT;
  const labels = past ? timeLabels(past.span, past.until) : timeLabels(KEPT);
  drawChart(by("chart"), shown, room, labels);
  const sum = (field) => rate(all.reduce((sum, one) => sum + (one[field] || 0), 0));
  by("sum-down").textContent = sum("receive_bps");
  by("sum-up").textContent = sum("send_bps");
  by("sentence").textContent = sentence(status, all);
  by("chart").setAttribute("aria-label",
    `Rates of all networks: ${sum("receive_bps")} received, ${sum("send_bps")} sent`);
  by("legend").replaceChildren(...all.map((network) => {
    const made = element("li");
    made.append(key(network), ` ${network.name}`);
    return made;
  }));
}

function show(status) {
  const state = by("state");
  state.textContent = status.state || "up";
  state.className = status.state && status.state !== "up" ? "bad" : "good";
  const hubs = (status.hubs || []).filter((hub) => hub.in_use).flatMap((hub) => hub.endpoints);
  const parts = [status.role, status.interface, (status.inner || []).join(", ")];
  if (hubs.length) parts.push(`hub ${hubs.join(", ")}`);
  if (typeof status.uptime_s === "number") parts.push(`for ${since(status.uptime_s)}`);
  by("summary").textContent = parts.filter(Boolean).join(" · ");
  by("notice").textContent = trouble || status.notice || "";

  const all = networks(status);
  remember(all);
  const whole = all.reduce((sum, one) => sum + (one.send_bps || 0) + (one.receive_bps || 0), 0);
  const cards = all.map((network) => [network, ...card(network, whole)]);
  const focused = document.activeElement?.dataset.key;
  by("networks").replaceChildren(...cards.map(([, made]) => made));
  showSchedulers(status);
  showRules(status);
  focusOn(focused);
  showChart(status, all);
  for (const [network, , canvas] of cards) draw(canvas, ...pointsOf(network));

  const clients = status.clients || [];
  by("clients-section").hidden = clients.length === 0;
  by("clients").tBodies[0].replaceChildren(...clients.map((client) =>
    row([client.name, client.connected ? "connected" : client.state || "", (client.inner || []).join(" ")])));

  const flows = (status.sessions || []).flatMap((session) => session.flows || []);
  flows.sort((a, b) => (b.sent_bytes || 0) - (a.sent_bytes || 0));
  by("flows-section").hidden = flows.length === 0;
  by("flows").tBodies[0].replaceChildren(...flows.slice(0, MOST_FLOWS).map((flow) =>
    row([flow.flow, flow.class, bytes(flow.sent_bytes), carriers(flow, all), flow.why || "", flow.scheduler])));
}

async function look() {
  const answer = await fetch("status");
  show(await answer.json());
}

// Asks for what was kept of the span that is chosen; again when a step of the shortest has passed.
async function lookBack() {
  const span = Number(by("span").value);
  const answer = span > 0 ? await fetch(`history/${span}`).catch(() => undefined) : undefined;
  past = answer && answer.ok ? { ...await answer.json(), span } : undefined;
  if (answer && !answer.ok) trouble = await answer.text();
}

by("span").addEventListener("change", () => lookBack().then(look));
setInterval(() => { if (past && !document.hidden) lookBack(); }, 10000);

// What was shown stays when nobody answers any more; a page that nobody looks at asks nothing.
async function keepLooking() {
  try {
    if (!document.hidden) await look();
  } catch {
    by("state").textContent = "unknown";
    by("state").className = "bad";
    by("notice").textContent = "the dashboard does not answer: check that it is running";
  }
  setTimeout(keepLooking, 1000);
}

async function begin() {
  const kept = await fetch(`history/${KEPT}`).catch(() => undefined);
  if (kept && kept.ok) before = await kept.json();
  keepLooking();
}

begin();
