'use strict';
// The page's own script: it draws the content of #data onto a canvas. Nothing is fetched; names are
// only ever drawn or set as text.
(() => {
  const data = JSON.parse(document.getElementById('data').textContent);
  document.documentElement.classList.add('js');
  const at = id => document.getElementById(id);
  const [overview, scroll, spacer, main, tip, details] =
    ['overview', 'scroll', 'spacer', 'main', 'tip', 'details'].map(at);
  const [search, found, group] = ['search', 'found', 'group'].map(at);
  const pen = main.getContext('2d'), small = overview.getContext('2d');
  const AXIS = 26, GUTTER = { device: 210, cost: 210, lane: 130, driver: 150 };
  const EACH = { device: true, cost: true };
  const FONT = "12px system-ui, -apple-system, 'Segoe UI', Roboto, 'DejaVu Sans', sans-serif";
  const CHAIN = 1, NO_CALLBACK = 2, ASYNC = 4, START_SOFT = 8, END_SOFT = 16, MAYBE_INSIDE = 32;

  let t, rows, groups, rowHeight, from, to, hover = -1, chosen = -1, hits = null, colours, frame = 0;
  // Cached for each bar: the width of the chart, and its rows.
  let wide = 1, mode = 'lane';

  // A length of time with three digits, as in the tables.
  function time(ns) {
    const [value, unit] = ns < 999.5 ? [ns, 'ns'] : ns < 999.5e3 ? [ns / 1e3, 'µs']
      : ns < 999.5e6 ? [ns / 1e6, 'ms'] : [ns / 1e9, 's'];
    const digits = unit === 'ns' ? 0 : value < 9.995 ? 2 : value < 99.95 ? 1 : 0;
    return value.toFixed(digits) + ' ' + unit;
  }

  // The time of a span, with its sign unless it is exact.
  const took = s => s.h ?? time(s.e - s.s);

  // A moment, in the timeline's own time, as exact as a kernel's stamps.
  const stampOf = ns => ((ns + t.origin) / 1e9).toFixed(6) + ' s';

  function theme() {
    const style = getComputedStyle(document.documentElement);
    colours = new Proxy({}, { get: (known, name) => known[name] ??= style.getPropertyValue('--' + name).trim() });
  }

  // Puts the spans into groups and rows; nothing overlaps in a row.
  function arrange() {
    const by = mode = group.value;
    const order = t.spans.map((_, i) => i);
    order.sort((a, b) => t.spans[a].s - t.spans[b].s || t.spans[b].e - t.spans[a].e || a - b);
    groups = [];
    rows = [];
    if (EACH[by]) {
      const mine = new Map();
      for (const i of order) {
        const name = t.spans[i].n;
        if (!mine.has(name)) { mine.set(name, rows.length); rows.push({ name, spans: [], until: -1 }); }
        rows[mine.get(name)].spans.push(i);
      }
      const cost = row => row.cost ??= row.spans.reduce((sum, i) => sum + (t.spans[i].w ?? t.spans[i].e - t.spans[i].s), 0);
      if (by === 'cost') rows.sort((a, b) => cost(b) - cost(a));
    } else {
      const named = new Map();
      for (const i of order) {
        const name = by === 'driver' ? t.spans[i].d || 'driver unknown' : t.lanes[t.spans[i].l];
        if (!named.has(name)) named.set(name, []);
        named.get(name).push(i);
      }
      const names = [...named.keys()];
      if (by === 'lane') names.sort((a, b) => t.lanes.indexOf(a) - t.lanes.indexOf(b));
      for (const name of names) {
        const first = rows.length, mine = [];
        for (const i of named.get(name)) {
          const s = t.spans[i];
          // A span of no length occupies its moment, so that a hundred of them don't hide each other.
          let row = mine.find(r => r.until < s.s || (r.until === s.s && r.last < s.s));
          if (!row) { row = { spans: [], until: -1, last: -1 }; mine.push(row); rows.push(row); }
          row.spans.push(i);
          row.until = s.e;
          row.last = s.s;
        }
        groups.push({ name, first, count: rows.length - first });
      }
    }
    t.spans.forEach((s, i) => { s.i = i; });
    rows.forEach((row, r) => {
      row.longest = 0;
      for (const i of row.spans) {
        t.spans[i].row = r;
        row.longest = Math.max(row.longest, t.spans[i].e - t.spans[i].s);
      }
    });
    rowHeight = rows.length > 400 ? 15 : 21;
    resize();
  }

  function resize() {
    const ratio = window.devicePixelRatio || 1;
    const width = wide = scroll.clientWidth || 1;
    const all = AXIS + rows.length * rowHeight + 8;
    const height = Math.max(70, Math.min(all, Math.round(window.innerHeight * 0.72) - 2));
    for (const [canvas, w, h, context] of [[main, width, height, pen], [overview, overview.clientWidth || 1, 58, small]]) {
      canvas.width = Math.round(w * ratio);
      canvas.height = Math.round(h * ratio);
      context.setTransform(ratio, 0, 0, ratio, 0, 0);
    }
    main.style.height = height + 'px';
    spacer.style.height = Math.max(0, all - height) + 'px';
    // Drawn at once: the canvases are empty now, and may be shown.
    if (colours) { draw(); drawOverview(); }
  }

  const redraw = () => { frame ||= requestAnimationFrame(() => { frame = 0; draw(); drawOverview(); }); };
  const left = () => Math.min(GUTTER[mode], wide / 3);
  const scale = () => (wide - left() - 8) / (to - from);
  const x = ns => left() + (ns - from) * scale();
  const y = row => AXIS + row * rowHeight - scroll.scrollTop;

  function fit(context, text, width) {
    if (context.measureText(text).width <= width) return text;
    let keep = Math.floor(text.length * width / context.measureText(text).width);
    for (; keep > 1; keep--) {
      const cut = text.slice(0, Math.ceil(keep / 2)) + '…' + text.slice(text.length - Math.floor(keep / 2));
      if (context.measureText(cut).width <= width) return cut;
    }
    return '';
  }

  function ticks(length, most) {
    let step = Math.pow(10, Math.floor(Math.log10(Math.max(length / most, 1))));
    for (const by of [1, 2, 5, 10]) if (length / (step * by) <= most) return step * by;
    return step * 10;
  }

  function draw() {
    const width = wide, height = main.clientHeight;
    pen.font = FONT;
    pen.textBaseline = 'middle';
    pen.fillStyle = colours.ground;
    pen.fillRect(0, 0, width, height);
    const first = Math.max(0, Math.floor((scroll.scrollTop) / rowHeight) - 1);
    const last = Math.min(rows.length, Math.ceil((scroll.scrollTop + height) / rowHeight) + 1);
    bands(first, last, width);
    grid(width, height);
    pen.save();
    pen.beginPath();
    pen.rect(left(), AXIS, width - left(), height - AXIS);
    pen.clip();
    const marked = [];
    for (let r = first; r < last; r++) drawRow(rows[r], r, marked);
    // Spans on the critical path and search hits lie on top.
    for (const i of marked) bar(t.spans[i], true);
    chain();
    if (chosen >= 0) edges(chosen, true);
    if (hover >= 0 && hover !== chosen) edges(hover, false);
    pen.restore();
    names(first, last);
    axis(width);
  }

  function bands(first, last, width) {
    pen.fillStyle = colours.band;
    if (EACH[mode]) {
      for (let r = first; r < last; r++) if (r % 2) pen.fillRect(0, y(r), width, rowHeight);
      return;
    }
    groups.forEach((g, i) => {
      if (i % 2 === 0 && g.first < last && g.first + g.count > first) {
        pen.fillRect(0, y(g.first), width, g.count * rowHeight);
      }
    });
  }

  function grid(width, height) {
    const step = ticks(to - from, Math.max(2, (width - left()) / 110));
    pen.strokeStyle = colours.line;
    pen.lineWidth = 1;
    pen.beginPath();
    for (let at = Math.ceil(from / step) * step; at <= to; at += step) {
      pen.moveTo(Math.round(x(at)) + .5, AXIS);
      pen.lineTo(Math.round(x(at)) + .5, height);
    }
    pen.stroke();
  }

  function axis(width) {
    pen.fillStyle = colours.ground;
    pen.fillRect(0, 0, width, AXIS - 1);
    const step = ticks(to - from, Math.max(2, (width - left()) / 110));
    pen.fillStyle = colours.quiet;
    pen.textAlign = 'center';
    for (let at = Math.ceil(from / step) * step; at <= to; at += step) {
      // One unit for all of them.
      const label = at === 0 ? '0'
        : to >= 1e9 && step >= 1e6 ? (at / 1e9).toFixed(Math.max(0, 9 - Math.floor(Math.log10(step)))) + ' s'
        : step >= 1e6 ? +(at / 1e6).toFixed(0) + ' ms' : step >= 1e3 ? +(at / 1e6).toFixed(3) + ' ms' : +(at / 1e3).toFixed(3) + ' µs';
      if (x(at) > left() - 5 && x(at) < width - 20) pen.fillText(label, x(at), AXIS / 2);
    }
    pen.textAlign = 'left';
    pen.strokeStyle = colours.line;
    pen.beginPath();
    pen.moveTo(0, AXIS - .5);
    pen.lineTo(width, AXIS - .5);
    pen.stroke();
  }

  // The first span of a row that may reach into view.
  function begin(row) {
    let low = 0, high = row.spans.length;
    const bound = from - row.longest;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (t.spans[row.spans[middle]].s < bound) low = middle + 1; else high = middle;
    }
    return low;
  }

  function drawRow(row, r, marked) {
    let drawn = -1, class_ = '';
    for (let k = begin(row); k < row.spans.length; k++) {
      const s = t.spans[row.spans[k]];
      if (s.s > to) break;
      if (s.e < from) continue;
      if (s.f & CHAIN || (hits && hits.has(s.i)) || s.i === chosen || s.i === hover) { marked.push(s.i); continue; }
      // Bars on the same pixel look the same.
      const right = x(s.e);
      if (right <= drawn && s.o === class_) continue;
      drawn = Math.max(Math.ceil(right), Math.floor(x(s.s)) + 2);
      class_ = s.o;
      bar(s, false, row.spans[k + 1]);
    }
  }

  function bar(s, marked, next) {
    const top = y(s.row) + 2, tall = rowHeight - 4;
    const x1 = Math.max(x(s.s), left() - 4), x2 = Math.min(Math.max(x(s.e), x(s.s) + 2), wide + 4);
    const faint = hits && !hits.has(s.i);
    pen.globalAlpha = faint ? .25 : 1;
    // In a row of several spans it would cover others.
    if (s.q < s.s && x(s.s) - x(s.q) > 2 && (EACH[mode] || s.i === hover || s.i === chosen)) {
      pen.strokeStyle = colours.quiet;
      pen.lineWidth = 1;
      pen.setLineDash([2, 2]);
      pen.beginPath();
      pen.moveTo(Math.max(x(s.q), left() - 4), top + tall / 2);
      pen.lineTo(x1, top + tall / 2);
      pen.stroke();
      pen.setLineDash([]);
    }
    pen.fillStyle = hits && hits.has(s.i) ? colours.found : colours[s.o];
    if (s.h) {
      // Hatched, not filled: the span may have been over.
      pen.globalAlpha *= .3;
      pen.fillRect(x1, top, x2 - x1, tall);
      pen.globalAlpha = faint ? .25 : 1;
      hatch(x1, x2, top, tall, colours[s.o + '-edge']);
    } else pen.fillRect(x1, top, x2 - x1, tall);
    const long = x2 - x1;
    if (long > 3 || marked) {
      const strong = s.f & CHAIN || s.i === chosen || s.i === hover;
      pen.strokeStyle = strong ? colours.path : colours[s.o + '-edge'];
      pen.lineWidth = strong && long > 3 ? 2 : 1;
      // An end that wasn't measured is drawn open.
      pen.beginPath();
      pen.moveTo(x2, top + .5);
      pen.lineTo(x1 + .5, top + .5);
      pen.lineTo(x1 + .5, top + tall - .5);
      pen.lineTo(x2, top + tall - .5);
      pen.stroke();
      pen.setLineDash(s.f & END_SOFT ? [2, 2] : []);
      pen.beginPath();
      pen.moveTo(x2 - .5, top);
      pen.lineTo(x2 - .5, top + tall);
      pen.stroke();
      pen.setLineDash([]);
    }
    label(s, x1, x2, top + tall / 2 + .5, next);
    pen.globalAlpha = 1;
  }

  function hatch(x1, x2, top, tall, colour) {
    pen.save();
    pen.beginPath();
    pen.rect(x1, top, x2 - x1, tall);
    pen.clip();
    pen.strokeStyle = colour;
    pen.lineWidth = 1;
    pen.globalAlpha *= .5;
    pen.beginPath();
    for (let at = Math.floor(Math.max(x1, 0) / 6) * 6 - tall; at < Math.min(x2, wide); at += 6) {
      pen.moveTo(at, top + tall);
      pen.lineTo(at + tall, top);
    }
    pen.stroke();
    pen.restore();
  }

  function label(s, x1, x2, middle, next) {
    if (rowHeight < 14) return;
    const long = x2 - x1;
    const inside = hits && hits.has(s.i) ? colours.text : colours['on-bar'];
    if (!EACH[mode]) {
      const text = long > 20 ? fit(pen, s.n, long - 8) : '';
      pen.fillStyle = inside;
      // A few letters of a long name are useless.
      if (text.length >= Math.min(8, s.n.length)) pen.fillText(text, x1 + 4, middle);
      return;
    }
    const text = took(s), takes = pen.measureText(text).width;
    if (takes + 8 < long) {
      pen.fillStyle = inside;
      pen.fillText(text, x1 + 4, middle);
    } else {
      pen.fillStyle = colours.quiet;
      const room = next === undefined ? wide - 8 - x2 : x(t.spans[next].s) - x2;
      if (takes + 8 < room) pen.fillText(text, x2 + 4, middle);
      else if (takes + 8 < x1 - left() && s.q === s.s) pen.fillText(text, x1 - takes - 4, middle);
    }
  }

  function names(first, last) {
    pen.fillStyle = colours.ground;
    pen.fillRect(0, AXIS, left() - 2, main.clientHeight);
    pen.strokeStyle = colours.line;
    pen.beginPath();
    pen.moveTo(left() - 2.5, AXIS);
    pen.lineTo(left() - 2.5, main.clientHeight);
    pen.stroke();
    pen.save();
    pen.beginPath();
    pen.rect(0, AXIS, left() - 4, main.clientHeight);
    pen.clip();
    pen.fillStyle = colours.text;
    const put = (name, row) => pen.fillText(fit(pen, name, left() - 14), 6, Math.max(y(row), AXIS) + rowHeight / 2);
    if (EACH[mode]) for (let r = first; r < last; r++) {
      put(rows[r].name, r);
      const from = 14 + pen.measureText(rows[r].name).width, driver = t.spans[rows[r].spans[0]].d;
      if (!driver || from + pen.measureText(driver).width > left() - 10) continue;
      pen.fillStyle = colours.quiet;
      pen.fillText(driver, from, Math.max(y(r), AXIS) + rowHeight / 2);
      pen.fillStyle = colours.text;
    } else for (const g of groups) {
      const end = y(g.first + g.count);
      if (end > AXIS + rowHeight / 2 && y(g.first) < main.clientHeight) put(g.name, g.first);
    }
    pen.restore();
  }

  function joint(a, b) {
    const x1 = x(t.spans[a].e), y1 = y(t.spans[a].row) + rowHeight / 2;
    const x2 = Math.max(x(t.spans[b].s), x1), y2 = y(t.spans[b].row) + rowHeight / 2;
    pen.moveTo(x1, y1);
    pen.lineTo(x2, y2);
  }

  function chain() {
    pen.strokeStyle = colours.path;
    pen.lineWidth = 1.5;
    pen.globalAlpha = .6;
    pen.setLineDash([4, 3]);
    pen.beginPath();
    for (let k = 1; k < t.path.length; k++) joint(t.path[k - 1], t.path[k]);
    pen.stroke();
    pen.setLineDash([]);
    pen.globalAlpha = 1;
  }

  function edges(i, strong) {
    pen.strokeStyle = colours.accent;
    pen.lineWidth = strong ? 1.6 : 1.2;
    pen.beginPath();
    for (const a of t.before[i] ?? []) joint(a, i);
    for (const b of t.after[i] ?? []) joint(i, b);
    pen.stroke();
  }

  // The largest number that ran at once at each pixel of the overview, computed once for a width.
  function profile(across, width) {
    const key = width + ' ' + left();
    if (t.profile?.key === key) return t.profile.tall;
    const tall = new Float64Array(width);
    t.steps.forEach(([ns, running], i) => {
      const end = i + 1 < t.steps.length ? t.steps[i + 1][0] : t.length;
      const last = Math.min(Math.ceil(across(end)), width);
      for (let px = Math.max(0, Math.floor(across(ns))); px < last; px++) tall[px] = Math.max(tall[px], running);
    });
    t.profile = { key, tall };
    return tall;
  }

  function drawOverview() {
    const width = overview.clientWidth, height = 58, base = height - 6;
    const across = ns => left() + (ns / Math.max(t.length, 1) + .005) / 1.025 * (wide - left() - 8);
    small.fillStyle = colours.card;
    small.fillRect(0, 0, width, height);
    small.fillStyle = colours.ok;
    const highest = Math.max(1, t.most);
    const tall = profile(across, width);
    for (let px = 0; px < width; px++) {
      if (tall[px]) small.fillRect(px, base - tall[px] / highest * (base - 6), 1, tall[px] / highest * (base - 6));
    }
    small.fillStyle = colours.path;
    for (const i of t.path) small.fillRect(across(t.spans[i].s), base + 1, Math.max(1, across(t.spans[i].e) - across(t.spans[i].s)), 3);
    small.font = '11px system-ui, sans-serif';
    small.fillStyle = colours.text;
    // Fewer words if there is less room: a number that is cut off is another number.
    const most = ['at most ' + t.most + (t.most === 1 ? ' bar' : ' bars') + ' at once', 'at most ' + t.most, '≤' + t.most];
    const said = most.find(words => small.measureText(words).width <= left() - 10);
    if (said) small.fillText(said, 6, 13);
    small.fillStyle = colours.text;
    small.globalAlpha = .12;
    small.fillRect(left(), 0, Math.max(0, across(from) - left()), height);
    small.fillRect(across(to), 0, Math.max(0, wide - 8 - across(to)), height);
    small.globalAlpha = 1;
    small.strokeStyle = colours.accent;
    small.lineWidth = 1.5;
    small.strokeRect(across(from) + .5, 1, Math.max(2, across(to) - across(from)) - 1, height - 2);
  }

  // Shows from `a` to `b`, within the timeline.
  function view(a, b) {
    const least = Math.min(1000, t.length), long = Math.min(Math.max(b - a, least), t.length * 1.04 || 1);
    const low = -t.length * .02, high = t.length * 1.02;
    from = Math.min(Math.max(a, low), Math.max(low, high - long));
    to = from + long;
    if (t.length === 0) { from = 0; to = 1; }
    redraw();
  }
  const whole = () => view(-t.length * .005, t.length * 1.02);

  function zoom(by, centre) {
    view(centre - (centre - from) * by, centre + (to - centre) * by);
  }

  function reveal(i) {
    chosen = i;
    const s = t.spans[i], long = s.e - s.s, room = to - from;
    if (s.s < from || s.e > to || long < room / 200) {
      const wanted = Math.min(Math.max(long * 8, t.length / 100, 1000), t.length * 1.04);
      view((s.s + s.e) / 2 - wanted / 2, (s.s + s.e) / 2 + wanted / 2);
    }
    const top = y(s.row);
    if (top < AXIS || top > main.clientHeight - rowHeight) {
      scroll.scrollTop = s.row * rowHeight - main.clientHeight / 2;
    }
    show();
    redraw();
  }

  function say(s) {
    const lines = [];
    const on = s.f & CHAIN ? ', on the critical path' : '';
    lines.push(s.k + (s.d ? ' by ' + s.d : '') + ', ' + s.o + (s.m ? ': ' + s.m : '') + on);
    const lane = t.lanes[s.l] + (s.f & MAYBE_INSIDE ? '?' : '');
    const place = [lane, s.c, s.f & ASYNC ? 'beside who started it' : ''].filter(Boolean).join(', ');
    lines.push(place);
    const soft = [s.f & START_SOFT ? 'start ' + s.u[0] : '', s.f & END_SOFT ? 'end ' + s.u[1] : ''].filter(Boolean);
    lines.push('from ' + stampOf(s.s) + ' to ' + stampOf(s.e) + (soft.length ? ' (' + soft.join(', ') + ')' : ''));
    const own = s.v !== undefined ? ', ' + s.v + ' of it by itself' : '';
    lines.push((s.f & NO_CALLBACK ? 'nothing to call, ' : 'took ') + took(s) + own
      + (s.q < s.s ? ', waited ' + time(s.s - s.q) + ' for a worker' : ''));
    if (s.b) lines.push('released by ' + s.b + ' at ' + stampOf(s.q));
    if (s.p !== undefined) {
      lines.push((s.f & MAYBE_INSIDE ? 'seems to have run inside ' : 'ran inside ') + t.spans[s.p].n);
    }
    if (s.y) lines.push(s.y + ' to spare, were everything asynchronous');
    return lines;
  }

  function bold(text) {
    const b = document.createElement('b');
    b.textContent = text;
    return b;
  }

  function show() {
    details.replaceChildren();
    details.style.display = chosen < 0 ? 'none' : 'block';
    if (chosen < 0) return;
    const p = document.createElement('p');
    p.textContent = say(t.spans[chosen]).join(' · ');
    details.append(bold(t.spans[chosen].n), p);
    for (const [word, list] of [['came after', t.before[chosen]], ['held up', t.after[chosen]]]) {
      if (!list) continue;
      const span = document.createElement('span');
      span.textContent = word;
      details.append(span);
      for (const i of list.slice(0, 40)) {
        const go = document.createElement('button');
        go.className = 'go';
        go.textContent = t.spans[i].n;
        go.onclick = () => reveal(i);
        details.append(go, ' ');
      }
      if (list.length > 40) details.append('and ' + (list.length - 40) + ' more');
      details.append(document.createElement('br'));
    }
  }

  function under(event) {
    const box = main.getBoundingClientRect();
    const px = event.clientX - box.left, py = event.clientY - box.top;
    if (px < left() || py < AXIS) return -1;
    const row = rows[Math.floor((py - AXIS + scroll.scrollTop) / rowHeight)];
    if (!row) return -1;
    let best = -1, nearest = 5;
    for (let k = begin(row); k < row.spans.length; k++) {
      const s = t.spans[row.spans[k]];
      if (x(s.s) > px + 5) break;
      const away = Math.max(x(s.s) - px, px - Math.max(x(s.e), x(s.s) + 2), 0);
      if (away < nearest) { nearest = away; best = s.i; }
    }
    return best;
  }

  function point(event) {
    const i = under(event);
    if (i !== hover) { hover = i; redraw(); }
    tip.style.display = i < 0 ? 'none' : 'block';
    if (i < 0) return;
    tip.replaceChildren(bold(t.spans[i].n), say(t.spans[i]).join('\n'));
    const w = tip.offsetWidth, h = tip.offsetHeight;
    tip.style.left = Math.max(4, Math.min(event.clientX + 14, window.innerWidth - w - 8)) + 'px';
    tip.style.top = (event.clientY + 16 + h < window.innerHeight ? event.clientY + 16 : Math.max(4, event.clientY - h - 12)) + 'px';
  }

  function find() {
    const words = search.value.trim().toLowerCase();
    hits = null;
    found.textContent = '';
    if (words) {
      // Without the isolates around right-to-left names.
      const text = s => [s.n, s.d, s.o, s.m, s.k, t.lanes[s.l]].join(' ').replace(/[\u2068\u2069]/g, '').toLowerCase();
      hits = new Set(t.spans.filter(s => text(s).includes(words)).map(s => s.i));
      let sum = 0, sign = '';
      for (const i of hits) { sum += t.spans[i].w ?? t.spans[i].e - t.spans[i].s; if (t.spans[i].h) sign = '~'; }
      found.textContent = hits.size + ' found' + (hits.size ? ', ' + sign + time(sum) + ' in all' : '');
    }
    redraw();
  }

  function next(step) {
    if (!hits || !hits.size) return;
    const order = [...hits].sort((a, b) => t.spans[a].s - t.spans[b].s || a - b);
    const now = order.indexOf(chosen);
    reveal(order[(now + step + order.length) % order.length]);
  }

  function open(index) {
    t = data[index];
    if (!t.before) {
      t.before = {};
      t.after = {};
      for (const [a, b] of t.edges) { (t.before[b] ??= []).push(a); (t.after[a] ??= []).push(b); }
    }
    document.querySelectorAll('nav button').forEach((b, i) => b.setAttribute('aria-selected', i === index));
    for (const part of ['header', 'section']) document.querySelectorAll(part).forEach((s, i) => { s.hidden = i !== index; });
    hover = chosen = -1;
    at('chart').style.display = t.spans.length ? '' : 'none';
    const names = new Set(t.spans.map(s => s.n)).size;
    group.value = names <= 60 ? 'device' : t.lanes.length <= 2 ? 'cost' : 'lane';
    scroll.scrollTop = 0;
    from = 0; to = 1;
    arrange();
    whole();
    show();
    find();
  }

  const stamp = event => from + (event.clientX - main.getBoundingClientRect().left - left()) / scale();
  main.addEventListener('wheel', event => {
    if (event.ctrlKey || event.metaKey || event.altKey) {
      event.preventDefault();
      zoom(Math.exp(Math.max(-60, Math.min(60, event.deltaY)) * .006), stamp(event));
    } else if (event.shiftKey || Math.abs(event.deltaX) > Math.abs(event.deltaY)) {
      event.preventDefault();
      const by = (event.deltaX || event.deltaY) / scale();
      view(from + by, to + by);
    }
  }, { passive: false });
  let drag = null;
  main.addEventListener('pointerdown', event => { drag = { x: event.clientX, from, moved: false }; });
  main.addEventListener('pointermove', event => {
    if (drag && event.buttons) {
      const by = (drag.x - event.clientX) / scale();
      if (Math.abs(drag.x - event.clientX) > 3) drag.moved = true;
      if (drag.moved) { main.setPointerCapture(event.pointerId); tip.style.display = 'none'; view(drag.from + by, drag.from + by + (to - from)); return; }
    }
    point(event);
  });
  main.addEventListener('pointerup', event => {
    if (drag && !drag.moved) { chosen = under(event); show(); redraw(); }
    drag = null;
  });
  main.addEventListener('pointerleave', () => { hover = -1; tip.style.display = 'none'; redraw(); });
  main.addEventListener('dblclick', event => {
    const i = under(event);
    if (i < 0) return whole();
    const s = t.spans[i], long = Math.max(s.e - s.s, 1000);
    view(s.s - long * .5, s.e + long * .5);
  });
  const move = event => {
    if (!event.buttons) return;
    const px = event.clientX - overview.getBoundingClientRect().left;
    const ns = ((px - left()) / (wide - left() - 8) * 1.025 - .005) * t.length;
    if (to - from >= t.length) view(ns - t.length / 10, ns + t.length / 10);
    else view(ns - (to - from) / 2, ns + (to - from) / 2);
  };
  overview.addEventListener('pointerdown', event => { overview.setPointerCapture(event.pointerId); move(event); });
  overview.addEventListener('pointermove', move);
  scroll.addEventListener('scroll', redraw);
  search.addEventListener('input', find);
  search.addEventListener('keydown', event => { if (event.key === 'Enter') next(event.shiftKey ? -1 : 1); });
  group.addEventListener('change', () => { scroll.scrollTop = 0; arrange(); });
  at('in').onclick = () => zoom(.5, (from + to) / 2);
  at('out').onclick = () => zoom(2, (from + to) / 2);
  at('all').onclick = whole;
  document.querySelectorAll('.go[data-i]').forEach(go => { go.onclick = () => { reveal(+go.dataset.i); scroll.scrollIntoView({ block: 'nearest' }); }; });
  document.querySelectorAll('nav button').forEach((b, i) => { b.onclick = () => open(i); });
  window.addEventListener('keydown', event => {
    if (event.target.closest?.('input, select') || event.ctrlKey || event.metaKey || event.altKey) {
      if (event.key === 'Escape') { search.value = ''; search.blur(); find(); }
      return;
    }
    const step = (to - from) * .15, middle = (from + to) / 2;
    const keys = {
      w: () => zoom(.7, middle), s: () => zoom(1.4, middle), '+': () => zoom(.7, middle), '-': () => zoom(1.4, middle),
      a: () => view(from - step, to - step), d: () => view(from + step, to + step),
      ArrowLeft: () => view(from - step, to - step), ArrowRight: () => view(from + step, to + step),
      0: whole, '/': () => search.focus(), n: () => next(1), N: () => next(-1),
      Escape: () => { chosen = -1; search.value = ''; show(); find(); },
    };
    const act = keys[event.key];
    if (act) { event.preventDefault(); act(); }
  });
  new ResizeObserver(() => { if (scroll.clientWidth !== wide) resize(); }).observe(scroll);
  window.addEventListener('resize', resize);
  window.matchMedia('(prefers-color-scheme: dark)').addEventListener('change', () => { theme(); redraw(); });
  theme();
  if (data.length) open(Math.max(0, data.findIndex(t => t.spans.length)));
})();
