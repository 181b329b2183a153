"use strict";
// The charts of one page. Times are in ticks that all schedules of the page share; an op is its index in the columns.
(() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const tip = document.getElementById("tip");
  const said = document.getElementById("said");
  const root = document.documentElement;
  const FONT = '12px system-ui, "DejaVu Sans", sans-serif';
  const SMALL = '11px system-ui, "DejaVu Sans", sans-serif';
  const AXIS = 24;
  const LEAST_SPAN = 4;
  const full = { from: data.from, to: data.to };
  const view = { ...full };
  const state = { path: false, dragging: false, printing: false };

  const schedules = data.schedules.map((given, number) => {
    const reach = new Array(given.start.length);
    given.rows.forEach((first, row) => {
      let last = -Infinity;
      for (let i = first; i < endOf(given, row); i++) reach[i] = last = Math.max(last, given.end[i]);
    });
    const gapBefore = new Map();
    const gaps = given.memory.stages.map(() => []);
    given.idle.forEach((gap) => {
      gaps[gap[0]].push(gap);
      if (gap[4] >= 0) gapBefore.set(gap[4], [...(gapBefore.get(gap[4]) ?? []), gap]);
    });
    return { ...given, number, reach, gaps, gapBefore, onPath: new Set(given.path) };
  });

  function endOf(schedule, row) {
    return row + 1 < schedule.rows.length ? schedule.rows[row + 1] : schedule.start.length;
  }

  // Words

  function idOf(schedule, op) {
    const [v, mb, it] = [schedule.virtual[op], schedule.microbatch[op], schedule.iteration ? schedule.iteration[op] : 0];
    const kind = data.kinds[schedule.kind[op]].name;
    return `it${it}/s${stageOf(schedule, op)}${v < 0 ? "" : `/v${v}`}${mb < 0 ? "" : `/mb${mb}`}/${kind}`;
  }

  function stageOf(schedule, op) {
    return schedule.stage ? schedule.stage[op] : schedule.stageOf[rowOf(schedule, op)];
  }

  function rowOf(schedule, op) {
    let [low, high] = [0, schedule.rows.length - 1];
    while (low < high) {
      const middle = (low + high + 1) >> 1;
      if (schedule.rows[middle] <= op) low = middle;
      else high = middle - 1;
    }
    return low;
  }

  /** The op that is one with `op`, next to it; `null` where there is none. */
  function twinOf(schedule, op) {
    if (!schedule.half?.[op]) return null;
    const same = (other) => schedule.half[other] && schedule.half[other] !== schedule.half[op] &&
      schedule.start[other] === schedule.start[op] && schedule.end[other] === schedule.end[op];
    return [op - 1, op + 1].find(same) ?? null;
  }

  function round(value, places) {
    return String(Number(value.toFixed(places)));
  }

  function timeText(ticks) {
    return data.unit ? `${round(ticks * data.perTick, 6)} ${data.unit}` : "";
  }

  function spanText(schedule, from, to) {
    const ticks = (t) => round(t / schedule.factor, 3);
    const time = data.unit ? ` (${round(from * data.perTick, 6)} to ${timeText(to)})` : "";
    const length = ticks(to - from);
    return `${ticks(from)} to ${ticks(to)}, ${length} tick${length === "1" ? "" : "s"}${time}`;
  }

  function gapText(schedule, gap) {
    const [, from, to, cause, , waitsFor] = gap;
    const other = waitsFor < 0 ? "" : `; for ${idOf(schedule, waitsFor)}`;
    return `idle ${spanText(schedule, from, to)}\n${data.causes[cause].name}: ${data.causes[cause].text}${other}`;
  }

  function rowText(schedule, row) {
    return `stage ${schedule.stageOf[row]}${schedule.beside[row] ? `, ${schedule.beside[row]}` : ""}`;
  }

  function rowLabels(schedule) {
    return schedule.stageOf.map((stage, row) => schedule.beside[row] ? `   ${schedule.beside[row]}` : `stage ${stage}`);
  }

  function opText(schedule, op) {
    const row = rowOf(schedule, op);
    const gaps = schedule.gapBefore.get(op);
    const other = twinOf(schedule, op);
    const before = other === op - 1 ? op - 2 : op - 1;
    let waited = before >= schedule.rows[row] ? `followed ${idOf(schedule, before)} at once` : "waited for nothing";
    if (schedule.beside[row]) waited = rowText(schedule, row);
    if (gaps) waited = "waited: " + gaps.map((gap) => gapText(schedule, gap).replace("\n", ", ")).join("\n");
    const nth = schedule.beside[row] ? 0 : schedule.nth[schedule.virtual[op]] ?? 0;
    const held = nth ? `\nvirtual stage ${nth + 1} of its stage` : "";
    const critical = schedule.onPath.has(op) ? "\non the critical path" : "";
    const kind = data.kinds[schedule.kind[op]];
    return `${idOf(schedule, op)}  ${kind.text}\n${spanText(schedule, schedule.start[op], schedule.end[op])}\n` +
      waited + held + (other === null ? "" : `\none op with ${idOf(schedule, other)}`) + critical;
  }

  // Colours: those of the page come from its style sheet

  const probe = document.body.appendChild(document.createElement("span"));
  probe.className = "unseen";
  let inks = {};

  function ink(name) {
    if (!inks[name]) {
      probe.style.color = `var(--${name})`;
      inks[name] = getComputedStyle(probe).color;
    }
    return inks[name];
  }

  function isDark() {
    return root.dataset.theme ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
  }

  function colourOf(kind) {
    return isDark() ? data.kinds[kind].dark : data.kinds[kind].light;
  }

  function textOn(kind) {
    return isDark() ? "#000000" : data.kinds[kind].ink;
  }

  // Charts: what they have in common

  class Chart {
    constructor(schedule, canvas) {
      Object.assign(this, { schedule, canvas, hovered: null, selected: null });
      canvas.addEventListener("wheel", (event) => this.wheel(event), { passive: false });
      canvas.addEventListener("pointerdown", (event) => this.grab(event));
      canvas.addEventListener("pointermove", (event) => this.move(event));
      canvas.addEventListener("pointerup", () => this.release());
      canvas.addEventListener("pointercancel", () => this.release());
      canvas.addEventListener("pointerleave", () => this.hover(null));
      canvas.addEventListener("keydown", (event) => this.key(event));
      canvas.addEventListener("blur", () => this.select(null));
    }

    layout() {
      this.rows = this.labels().length;
      this.row = this.rowHeight(this.rows);
      this.width = Math.max(this.canvas.parentElement.clientWidth, 200);
      this.height = this.rows * this.row + AXIS;
      const ctx = (this.ctx = this.canvas.getContext("2d"));
      const sharp = Math.min(devicePixelRatio || 1, 30000 / this.height);
      this.canvas.width = Math.round(this.width * sharp);
      this.canvas.height = Math.round(this.height * sharp);
      this.canvas.style.height = `${this.height}px`;
      ctx.setTransform(sharp, 0, 0, sharp, 0, 0);
      ctx.font = FONT;
      // All charts of a schedule begin at one place, so that their ticks are below each other.
      this.left = Math.ceil(Math.max(...rowLabels(this.schedule).map((label) => ctx.measureText(label).width))) + 8;
      const largest = this.schedule.microbatch.reduce((most, number) => Math.max(most, number), 0);
      this.widest = "8".repeat(String(largest).length);
      this.wide = this.width >= 560;
      this.right = this.wide ? 118 : 8;
      this.scale = (this.width - this.left - this.right) / (view.to - view.from);
      Object.assign(this.canvas.dataset, { from: view.from, to: view.to, left: this.left, right: this.right });
      this.canvas.dataset.row = this.row;
    }

    x(time) {
      return this.left + (time - view.from) * this.scale;
    }

    draw() {
      this.layout();
      const { ctx } = this;
      ctx.clearRect(0, 0, this.width, this.height);
      ctx.textBaseline = "middle";
      const every = Math.ceil(14 / this.row);
      this.labels().forEach((label, row) => {
        const middle = (row + 0.5) * this.row;
        if (row % every === 0) {
          this.write(label, 0, middle, label.startsWith(" ") ? "soft" : "ink");
          if (this.wide) this.write(this.note(row), this.width - this.right + 10, middle, "soft");
        }
      });
      ctx.save();
      ctx.beginPath();
      ctx.rect(this.left, 0, this.width - this.left - this.right, this.rows * this.row);
      ctx.clip();
      for (let row = 0; row < this.rows; row++) this.drawRow(row);
      this.drawOver();
      ctx.restore();
      this.drawAxis();
    }

    write(text, x, y, colour) {
      this.ctx.fillStyle = ink(colour);
      this.ctx.textAlign = "left";
      this.ctx.fillText(text, x, y);
    }

    drawOver() {}

    drawAxis() {
      const { ctx } = this;
      const per = data.perTick;
      const sample = ctx.measureText(round(view.to * per, 3)).width + 34;
      const step = axisStep((sample / this.scale) * per, data.unit ? 0 : 1);
      const top = this.height - AXIS;
      ctx.strokeStyle = ctx.fillStyle = ink("soft");
      ctx.textAlign = "center";
      const right = this.width - this.right;
      const unit = data.unit || "ticks";
      this.write(unit, this.left - ctx.measureText(unit).width - 10, top + 14, "soft");
      ctx.textAlign = "center";
      for (let n = Math.ceil((view.from * per) / step - 1e-9); n * step <= view.to * per * (1 + 1e-12); n++) {
        const x = this.x((n * step) / per);
        ctx.fillRect(Math.round(x), top, 1, 5);
        const text = round(n * step, 9);
        const half = ctx.measureText(text).width / 2;
        if (x + half <= Math.max(right, this.width - 4) && x - half >= this.left - 8) ctx.fillText(text, x, top + 14);
      }
      ctx.fillRect(this.left, top, right - this.left, 1);
    }

    // Where the pointer is

    at(event) {
      const box = this.canvas.getBoundingClientRect();
      const [x, y] = [event.clientX - box.left, event.clientY - box.top];
      const row = Math.floor(y / this.row);
      const inside = x >= this.left && x <= this.width - this.right && row >= 0 && row < this.rows;
      return { time: view.from + (x - this.left) / this.scale, row, low: y / this.row - row >= 0.5, inside };
    }

    wheel(event) {
      const place = this.at(event);
      const sideways = event.shiftKey || Math.abs(event.deltaX) > Math.abs(event.deltaY);
      const outAtMost = event.deltaY > 0 && view.to - view.from >= full.to - full.from;
      if (!place.inside || (outAtMost && !sideways)) return; // then the page scrolls
      event.preventDefault();
      if (sideways) pan(((event.deltaX || event.deltaY) / this.scale) * 0.5);
      else zoom(Math.exp(Math.max(-200, Math.min(200, event.deltaY)) * 0.002), place.time);
      this.move(event);
    }

    grab(event) {
      if (event.button !== 0 || !this.at(event).inside) return;
      this.canvas.setPointerCapture(event.pointerId);
      this.dragged = event.clientX;
      this.canvas.classList.add("dragging");
      this.hover(null);
    }

    release() {
      this.dragged = undefined;
      this.canvas.classList.remove("dragging");
    }

    move(event) {
      if (this.dragged !== undefined) {
        pan((this.dragged - event.clientX) / this.scale);
        this.dragged = event.clientX;
        return;
      }
      const place = this.at(event);
      this.hover(place.inside ? this.found(place) : null, event.clientX, event.clientY);
    }

    hover(found, x, y) {
      const changed = this.hovered?.op !== found?.op;
      this.hovered = found;
      showTip(found?.text, x, y);
      if (changed) redraw();
    }

    select(op) {
      if (this.selected === op) return;
      this.selected = op;
      this.hovered = null;
      said.textContent = op === null ? "" : opText(this.schedule, op);
      if (op === null) showTip(null);
      else reveal(this.schedule.start[op], this.schedule.end[op]);
      redraw();
      if (op === null) return;
      const box = this.canvas.getBoundingClientRect();
      const y = (rowOf(this.schedule, op) + 1) * this.row;
      showTip(said.textContent, box.left + this.x(this.schedule.start[op]), box.top + y);
    }

    key(event) {
      if (event.ctrlKey || event.metaKey || event.altKey) return;
      const span = view.to - view.from;
      const keys = {
        ArrowLeft: () => pan(-0.15 * span),
        ArrowRight: () => pan(0.15 * span),
        ArrowUp: () => this.step(-1, 0),
        ArrowDown: () => this.step(1, 0),
        n: () => this.step(0, 1),
        p: () => this.step(0, -1),
        Escape: () => this.select(null),
        Home: () => show(full.from, full.to),
      };
      if (!keys[event.key]) return;
      event.preventDefault();
      keys[event.key]();
    }

    step(rows, ops) {
      const { schedule, selected } = this;
      const first = schedule.rows.findIndex((op, row) => op < endOf(schedule, row));
      if (selected === null) return this.select(firstOp(schedule, first, view.from));
      const row = rowOf(schedule, selected);
      if (ops) {
        const op = selected + ops;
        return op >= schedule.rows[row] && op < endOf(schedule, row) ? this.select(op) : undefined;
      }
      const other = Math.min(Math.max(row + rows, 0), schedule.rows.length - 1);
      if (schedule.rows[other] === endOf(schedule, other)) return undefined;
      return this.select(firstOp(schedule, other, schedule.start[selected]));
    }
  }

  /** First op of a row that ends after `time`; the last one where none does. */
  function firstOp(schedule, row, time) {
    let [low, high] = [schedule.rows[row], endOf(schedule, row)];
    while (low < high) {
      const middle = (low + high) >> 1;
      if (schedule.reach[middle] > time) high = middle;
      else low = middle + 1;
    }
    return Math.max(schedule.rows[row], Math.min(low, endOf(schedule, row) - 1));
  }

  function axisStep(least, lowest) {
    const power = 10 ** Math.floor(Math.log10(least));
    const step = [1, 2, 5, 10].map((n) => n * power).find((s) => s >= least * (1 - 1e-9));
    return Math.max(step, lowest);
  }

  class Gantt extends Chart {
    labels() {
      return rowLabels(this.schedule);
    }

    rowHeight(rows) {
      if (this.schedule.half && rows <= 64) return rows <= 16 ? 38 : 30;
      return rows <= 8 ? 28 : rows <= 16 ? 22 : rows <= 64 ? 17 : Math.max(3, Math.floor(1100 / rows));
    }

    /** Top and height of an op: of the whole, or of its half of it. */
    part(op, top, high) {
      const half = this.schedule.half?.[op];
      return half ? [top + (half - 1) * high / 2, high / 2] : [top, high];
    }

    note(row) {
      return this.schedule.beside[row] ? "" : this.schedule.idleNotes[this.schedule.stageOf[row]];
    }

    drawRow(number) {
      const { ctx, schedule, row } = this;
      const gap = row >= 12 ? 2 : row >= 6 ? 1 : 0;
      const [top, high] = [number * row + gap, row - 2 * gap];
      ctx.fillStyle = ink("idle");
      ctx.fillRect(this.x(schedule.from), top, (schedule.to - schedule.from) * this.scale, high);
      for (let i = firstOp(schedule, number, view.from); i < endOf(schedule, number) && schedule.start[i] < view.to; i++) {
        const x = this.x(schedule.start[i]);
        const length = (schedule.end[i] - schedule.start[i]) * this.scale;
        const kind = schedule.kind[i];
        ctx.globalAlpha = state.path && !schedule.onPath.has(i) ? 0.22 : 1;
        ctx.fillStyle = colourOf(kind);
        const [above, tall] = this.part(i, top, high);
        ctx.fillRect(x, above, length > 3 ? length - 1 : length, tall);
        if (length >= 5) this.label(i, schedule.beside[number], x, above, length, tall);
      }
      ctx.globalAlpha = 1;
    }

    label(op, beside, x, top, length, high) {
      const { ctx, schedule } = this;
      const kind = schedule.kind[op];
      const lines = beside ? 0 : Math.min(schedule.nth[schedule.virtual[op]] ?? 0, 3);
      ctx.fillStyle = textOn(kind);
      if (high >= 12) for (let n = 1; n <= lines; n++) ctx.fillRect(x, top + high - 3 * n, length - 1, 1.5);
      if (high < 12 || length < 9) return;
      const number = schedule.microbatch[op] < 0 ? "" : String(schedule.microbatch[op]);
      const name = data.kinds[kind].sign;
      ctx.font = SMALL;
      const [begin, end] = [Math.max(x, this.left), Math.min(x + length, this.width - this.right)];
      // Of ops of one length all have their number, or none: 0 to 9 without 10 would look like ops without one.
      const room = number && this.widest;
      const fits = (text) => ctx.measureText(text).width <= end - begin - 2;
      const text = fits(name + room) ? name + number : fits(room || name) ? number || name : "";
      ctx.textAlign = "center";
      const middle = top + high / 2 + 1 - (high >= 20 ? 1.5 * lines : 0);
      if (text) ctx.fillText(text, (begin + end) / 2, middle);
      ctx.font = FONT;
    }

    drawOver() {
      const { schedule } = this;
      if (state.path) this.connect(schedule.path, "alarm");
      const op = this.hovered?.op ?? this.selected;
      if (op === null || op === undefined || op < 0) return;
      const giver = (schedule.gapBefore.get(op) ?? []).map((gap) => gap[5]).find((other) => other >= 0);
      if (giver !== undefined) {
        this.connect([giver, op], "ink");
        this.outline(giver, "soft");
      }
      this.outline(op, "ink");
    }

    outline(op, colour) {
      const { ctx, schedule, row } = this;
      ctx.strokeStyle = ink(colour);
      ctx.lineWidth = 2;
      const width = Math.max((schedule.end[op] - schedule.start[op]) * this.scale - 1, 2);
      const [top, high] = this.part(op, rowOf(schedule, op) * row + 1, row - 2);
      ctx.strokeRect(this.x(schedule.start[op]), top, width, high);
    }

    connect(ops, colour) {
      const { ctx, schedule, row } = this;
      ctx.strokeStyle = ink(colour);
      ctx.lineWidth = 2;
      ctx.beginPath();
      ops.forEach((op, i) => {
        const [top, high] = this.part(op, rowOf(schedule, op) * row, row);
        const y = top + high / 2;
        if (i) ctx.lineTo(this.x(schedule.start[op]), y);
        ctx.moveTo(this.x(schedule.end[op]), y);
      });
      ctx.stroke();
      if (state.path && row >= 12) ops.forEach((op) => this.frame(op));
    }

    frame(op) {
      const { ctx, schedule, row } = this;
      const x = this.x(schedule.start[op]);
      const width = (schedule.end[op] - schedule.start[op]) * this.scale - 1;
      if (width >= 3 && x < this.width && x + width > this.left) {
        const [top, high] = this.part(op, rowOf(schedule, op) * row + 2, row - 4);
        ctx.strokeRect(x + 1, top, width - 2, high);
      }
    }

    found({ time, row, low }) {
      const { schedule } = this;
      let op = firstOp(schedule, row, time);
      if (schedule.half?.[op] === (low ? 1 : 2)) op = twinOf(schedule, op) ?? op;
      if (op < endOf(schedule, row) && schedule.start[op] <= time && schedule.end[op] > time) {
        return { op, text: opText(schedule, op) };
      }
      if (schedule.beside[row]) return { op: -1, text: `${rowText(schedule, row)}\nfree` };
      const stage = schedule.stageOf[row];
      const gap = schedule.gaps[stage].find(([, from, to]) => from <= time && time < to);
      return gap ? { op: gap[4], text: `stage ${stage}\n${gapText(schedule, gap)}` } : null;
    }
  }

  class Memory extends Chart {
    labels() {
      return this.schedule.memory.stages.map((_, stage) => `stage ${stage}`);
    }

    rowHeight(stages) {
      return stages <= 8 ? 40 : stages <= 16 ? 30 : stages <= 64 ? 22 : Math.max(3, Math.floor(1100 / stages));
    }

    note(stage) {
      return this.schedule.memory.notes[stage];
    }

    drawRow(stage) {
      const { ctx, schedule, row } = this;
      const { most, stages, cap } = schedule.memory;
      const { time, live } = stages[stage];
      const base = (stage + 1) * row - 1;
      const y = (amount) => base - (amount / (most || 1)) * (row - 5);
      ctx.fillStyle = ink("idle");
      ctx.fillRect(this.x(schedule.from), base, (schedule.to - schedule.from) * this.scale, 1);
      const first = Math.max(lastBefore(time, view.from), 0);
      ctx.beginPath();
      ctx.moveTo(this.left, base);
      let level = time.length && time[0] <= view.from ? live[first] : 0;
      ctx.lineTo(this.left, y(level));
      for (let i = first; i < time.length && time[i] < view.to; i++) {
        if (time[i] === time[i + 1]) continue; // what goes and comes at one time is no dip
        const x = Math.max(this.x(time[i]), this.left);
        ctx.lineTo(x, y(level));
        ctx.lineTo(x, y((level = live[i])));
      }
      const last = Math.min(this.x(schedule.to), this.width - this.right);
      ctx.lineTo(last, y(level));
      ctx.lineTo(last, base);
      ctx.fillStyle = ctx.strokeStyle = ink("curve");
      ctx.globalAlpha = 0.3;
      ctx.fill();
      ctx.globalAlpha = 1;
      ctx.lineWidth = 1;
      ctx.stroke();
      if (!cap) return;
      ctx.strokeStyle = ink("alarm");
      ctx.setLineDash([6, 4]);
      ctx.beginPath();
      ctx.moveTo(this.left, Math.round(y(cap[stage])) + 0.5);
      ctx.lineTo(Math.max(last, this.left), Math.round(y(cap[stage])) + 0.5);
      ctx.stroke();
      ctx.setLineDash([]);
    }

    found({ time, row: stage }) {
      const { schedule } = this;
      const entry = schedule.memory.stages[stage];
      const i = lastBefore(entry.time, time);
      const cap = schedule.memory.cap ? ` of ${round(schedule.memory.cap[stage], 4)}` : "";
      const held = new Map();
      for (let k = 0; k <= i; k++) {
        const op = entry.op[k];
        const key = `v${schedule.virtual[op]}/mb${schedule.microbatch[op]}`;
        const left = (held.get(key) ?? 0) + entry.change[k];
        if (Math.abs(left) < 1e-9) held.delete(key);
        else held.set(key, left);
      }
      const list = [...held].slice(0, 12).map(([key, amount]) => `${key}: ${round(amount, 4)}`);
      if (held.size > 12) list.push(`and ${held.size - 12} more`);
      const when = `${round(time / schedule.factor, 2)} ticks${data.unit ? ` (${round(time * data.perTick, 3)} ${data.unit})` : ""}`;
      const live = i < 0 ? 0 : entry.live[i];
      return { op: -1, text: `stage ${stage} at ${when}\nlive ${round(live, 4)}${cap}${schedule.memory.unit}\n${list.join(", ")}` };
    }
  }

  /** Last index whose time is not after `time`; -1 without one. */
  function lastBefore(times, time) {
    let [low, high] = [0, times.length];
    while (low < high) {
      const middle = (low + high) >> 1;
      if (times[middle] <= time) low = middle + 1;
      else high = middle;
    }
    return low - 1;
  }

  // The ledger as a table: what happens to the memory of a stage in the window

  function fillLedger(schedule) {
    const box = document.getElementById(`ledger-${schedule.number}`);
    if (!box?.open) return;
    const stage = box.querySelector("select").value;
    const shows = [stage, view.from, view.to].join();
    if (box.dataset.shows === shows) return;
    box.dataset.shows = shows;
    const entry = schedule.memory.stages[Number(stage)];
    const first = lastBefore(entry.time, view.from - 1e-9) + 1;
    const end = lastBefore(entry.time, view.to) + 1;
    const rows = [];
    for (let i = first; i < Math.min(end, first + 200); i++) {
      const cells = [round(entry.time[i] / schedule.factor, 3), idOf(schedule, entry.op[i])];
      const sign = entry.change[i] > 0 ? "+" : "−";
      rows.push([...cells, sign + round(Math.abs(entry.change[i]), 4), round(entry.live[i], 4)]);
    }
    box.querySelector("tbody").replaceChildren(...rows.map((cells) => {
      const row = document.createElement("tr");
      cells.forEach((text, n) => {
        const cell = row.insertCell();
        cell.textContent = text;
        if (n === 1) cell.className = "text";
      });
      return row;
    }));
    const shown = end - first > 200 ? `the first 200 of ${end - first} changes in the window; zoom in for others` : `${end - first} changes in the window`;
    box.querySelector("p").textContent = shown;
  }

  // The window that all charts show

  function show(from, to) {
    const span = Math.min(Math.max(to - from, Math.min(LEAST_SPAN, full.to - full.from)), full.to - full.from);
    view.from = Math.min(Math.max(from, full.from), full.to - span);
    view.to = view.from + span;
    redraw();
  }

  function pan(ticks) {
    show(view.from + ticks, view.to + ticks);
  }

  function zoom(factor, around = (view.from + view.to) / 2) {
    show(around - (around - view.from) * factor, around + (view.to - around) * factor);
  }

  function reveal(from, to) {
    if (from >= view.from && to <= view.to) return;
    const span = Math.max(view.to - view.from, (to - from) * 2);
    show((from + to - span) / 2, (from + to + span) / 2);
  }

  function showTip(text, x, y) {
    tip.hidden = !text;
    if (!text) return;
    tip.textContent = text;
    const [width, height] = [tip.offsetWidth, tip.offsetHeight];
    tip.style.left = `${Math.max(8, Math.min(x + 14, innerWidth - width - 8))}px`;
    const below = y + 16 + height <= innerHeight;
    tip.style.top = `${Math.max(8, below ? y + 16 : y - height - 12)}px`;
  }

  const charts = schedules.flatMap((schedule) => [
    new Gantt(schedule, document.getElementById(`gantt-${schedule.number}`)),
    new Memory(schedule, document.getElementById(`memory-${schedule.number}`)),
  ]);
  let waiting = false;

  function redraw() {
    if (state.printing) return drawAll();
    if (!waiting) requestAnimationFrame(drawAll);
    waiting = true;
  }

  function drawAll() {
    waiting = false;
    inks = {};
    charts.forEach((chart) => chart.draw());
    schedules.forEach(fillLedger);
    const ends = [view.from, view.to].map((t) => round(t * data.perTick, 3));
    document.getElementById("window").textContent = `${ends[0]} to ${ends[1]} ${data.unit || "ticks"}`;
    document.querySelectorAll(".legend i[data-kind]").forEach((box) => {
      box.style.background = colourOf(Number(box.dataset.kind));
    });
  }

  const actions = {
    in: () => zoom(1 / 1.5),
    out: () => zoom(1.5),
    left: () => pan(-0.25 * (view.to - view.from)),
    right: () => pan(0.25 * (view.to - view.from)),
    all: () => show(full.from, full.to),
    path: () => {
      state.path = !state.path;
      document.querySelector('[data-do="path"]').setAttribute("aria-pressed", String(state.path));
      redraw();
    },
    theme: () => {
      root.dataset.theme = isDark() ? "light" : "dark";
      redraw();
    },
  };
  document.querySelectorAll("[data-do]").forEach((button) => {
    button.addEventListener("click", () => actions[button.dataset.do]());
  });
  document.querySelectorAll(".ledger").forEach((box, n) => {
    box.addEventListener("toggle", () => fillLedger(schedules[n]));
    box.querySelector("select").addEventListener("change", () => fillLedger(schedules[n]));
  });
  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || event.target.tagName === "SELECT") return;
    const keys = { "+": "in", "=": "in", "-": "out", 0: "all", c: "path", t: "theme" };
    if (keys[event.key]) actions[keys[event.key]]();
  });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redraw);
  new ResizeObserver(redraw).observe(document.querySelector("main"));
  let themeBefore;
  addEventListener("beforeprint", () => {
    [themeBefore, state.printing] = [root.dataset.theme, true];
    root.dataset.theme = "light";
    redraw();
  });
  addEventListener("afterprint", () => {
    state.printing = false;
    if (themeBefore) root.dataset.theme = themeBefore;
    else delete root.dataset.theme;
    redraw();
  });
  drawAll();
})();
