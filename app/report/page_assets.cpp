#include "app/report/page.h"

namespace hyperion::report {

// The colours are those of Okabe and Ito, which people with any kind of colour blindness tell apart, a little
// lighter on a dark page. Runs 8 to 14 have them again, dashed.
const char* const kPageStyle = R"css(
:root{color-scheme:light dark;--back:#f6f7f9;--card:#fff;--text:#1b1f24;--soft:#5c6670;--line:#d5dae0;--grid:#e8ebef;
--warn:#b3261e;--c0:#0072b2;--c1:#d55e00;--c2:#009e73;--c3:#cc79a7;--c4:#d99400;--c5:#56b4e9;--c6:#555b61}
@media(prefers-color-scheme:dark){:root{--back:#14171b;--card:#1c2026;--text:#e4e7eb;--soft:#9aa5b1;--line:#3a424c;
--grid:#2a3038;--warn:#ff8a80;--c0:#4aa3e0;--c1:#f07f30;--c2:#1fbf92;--c3:#e39bc6;--c4:#f0b840;--c5:#a5dcff;--c6:#b8bec5}}
*{box-sizing:border-box}
body{margin:0 auto;max-width:2400px;padding:20px 24px 60px;background:var(--back);color:var(--text);
font:14px/1.45 system-ui,"Segoe UI",Roboto,"DejaVu Sans",sans-serif}
h1{font-size:20px;margin:0}h2{font-size:16px;margin:30px 0 10px}
header{display:flex;gap:16px;align-items:baseline;flex-wrap:wrap;margin-bottom:14px}
header p,.note,small{color:var(--soft)}header p{margin:0}.note{margin:6px 0 12px;font-size:12px}
.r0,.r7{--c:var(--c0)}.r1,.r8{--c:var(--c1)}.r2,.r9{--c:var(--c2)}.r3,.r10{--c:var(--c3)}.r4,.r11{--c:var(--c4)}
.r5,.r12{--c:var(--c5)}.r6,.r13{--c:var(--c6)}
.swatch{display:inline-block;width:18px;border-top:3px solid var(--c);margin-right:7px;vertical-align:middle}
.r7.swatch,.r8.swatch,.r9.swatch,.r10.swatch,.r11.swatch,.r12.swatch,.r13.swatch{border-top-style:dashed}
.scroll{overflow-x:auto;background:var(--card);border:1px solid var(--line);border-radius:8px}
table{border-collapse:collapse;width:100%}
th,td{padding:7px 9px;text-align:left;vertical-align:top;border-bottom:1px solid var(--grid);unicode-bidi:isolate}
tr:last-child td{border-bottom:0}th{font-weight:600;color:var(--soft);font-size:12px}
td.run{min-width:180px;overflow-wrap:anywhere}td.number{font-variant-numeric:tabular-nums;white-space:nowrap}
td.large{font-size:16px;font-weight:600}td small{display:block;font-weight:400;font-size:12px;white-space:normal}
td code,li code{font:12px/1.5 ui-monospace,"DejaVu Sans Mono",monospace;overflow-wrap:anywhere;white-space:pre-wrap}
.warn{color:var(--warn)}progress{width:105px;height:7px;display:block;margin-top:3px;accent-color:var(--c)}
.bar{display:none;position:sticky;top:0;z-index:2;gap:10px 22px;align-items:center;flex-wrap:wrap;padding:10px 0;
background:var(--back)}
.script .bar{display:flex}html:not(.script) .note span{display:none}.bar label{display:flex;gap:7px;align-items:center;color:var(--soft)}
.bar output{min-width:2.6em;font-variant-numeric:tabular-nums}
button,select,input[type=number]{font:inherit;color:inherit;background:var(--card);border:1px solid var(--line);border-radius:6px;
padding:3px 10px;cursor:pointer}button:disabled{opacity:.45;cursor:default}input[type=number]{width:8em;cursor:text}
button[aria-pressed=false]{opacity:.45;text-decoration:line-through}
.plots{display:grid;grid-template-columns:repeat(auto-fill,minmax(min(100%,560px),1fr));gap:14px}
figure{margin:0;padding:10px 12px 4px;background:var(--card);border:1px solid var(--line);border-radius:8px;
position:relative}
figcaption{display:flex;gap:8px;align-items:baseline;min-height:27px;font-weight:600;overflow-wrap:anywhere}
figcaption small{font-weight:400}figcaption button{display:none;margin-left:auto;font-weight:400;font-size:12px;
padding:1px 8px}.script figcaption button{display:block}
svg.plot{display:block;overflow:visible;width:100%;height:auto;cursor:crosshair;touch-action:pan-y;user-select:none}svg text{font-size:12px;fill:var(--soft)}
.y text{text-anchor:end}.x text{text-anchor:middle}svg path{fill:none;vector-effect:non-scaling-stroke}
.grid{stroke:var(--grid)}.frame,.tick{stroke:var(--line)}.cursor{stroke:var(--soft);stroke-dasharray:3 3}
svg .selection{fill:var(--soft);opacity:.25}.reference{stroke:var(--soft);stroke-dasharray:6 4}
.restart{stroke:var(--c);stroke-dasharray:2 4;opacity:.75}
.mean{stroke:var(--c);stroke-width:1.8;stroke-linejoin:round}.dots{stroke:var(--c);stroke-width:5.5;
stroke-linecap:round}svg .band{fill:var(--c);opacity:.2}.raw{stroke:var(--c);opacity:.28}
svg .marked{stroke:var(--c);fill:var(--card)}.broken{stroke:var(--warn);stroke-width:2}
.r7 .mean,.r8 .mean,.r9 .mean,.r10 .mean,.r11 .mean,.r12 .mean,.r13 .mean{stroke-dasharray:7 4}
.superseded{opacity:.3}.superseded .mean{stroke-width:1.2}.superseded .dots{stroke-width:3.5}
.hide-superseded .superseded,.hidden{display:none}.dim{opacity:.15}
.values{position:absolute;z-index:3;pointer-events:none;background:var(--card);border:1px solid var(--line);
border-radius:6px;padding:6px 10px;font-size:12px;box-shadow:0 3px 12px #0003;max-width:75%;
font-variant-numeric:tabular-nums}
.values div{overflow-wrap:anywhere}.values small{margin-left:6px}
details{margin-top:14px}summary{cursor:pointer;font-size:16px;font-weight:600;margin:20px 0 10px}
summary small{font-weight:400;font-size:13px}
tr:has(+.record) td{border-bottom:0}.record td{padding-top:0}td details,td summary{margin:0;font-size:12px;font-weight:400}
td summary small{display:inline}
pre{margin:8px 0 0;max-height:60vh;overflow:auto;font:12px/1.5 ui-monospace,"DejaVu Sans Mono",monospace;
white-space:pre-wrap;overflow-wrap:anywhere}
button.run{max-width:420px;overflow:hidden;text-overflow:ellipsis;white-space:nowrap}
@media print{.script .bar,.script figcaption button,.note span{display:none}figure,tr{break-inside:avoid}}
)css";

// Its hash is below.
const char* const kPageScript = R"js(
'use strict';
const data = JSON.parse(document.getElementById('data').textContent);
const [left, right, top_, bottom] = data.frame;
const all = (selector, from = document) => [...from.querySelectorAll(selector)];
const control = id => document.getElementById(id);
const plots = all('svg.plot');
const names = all('.bar .run').map(button => button.textContent.trim());
let axis = 0, smoothing = 0;
let ranges = data.x;  // what the axes show: all steps, or those that were chosen

const ofRun = run => all('svg .r' + run);
const text = value => value.toLocaleString('en-US', {maximumSignificantDigits: 6});
const axisOf = svg => +(svg.dataset.axis ?? axis);

// Of a value its place from `start` to `end`; not finite where the axis has none.
function scale([low, high], start, end, log) {
  const of = log ? Math.log : value => value;
  return value => value === null ? NaN : start + (of(value) - of(low)) / (of(high) - of(low)) * (end - start);
}

// The y axis for some values: linear_interval() and log_interval() of axis.cpp.
function interval(values, references, log, zero) {
  let low = Infinity, high = -Infinity;
  const take = value => { low = Math.min(low, value), high = Math.max(high, value); };
  for (const value of values) if (value !== null && (!log || value > 0)) take(value);
  if (low > high) return log ? [1, 10] : [0, 1];
  const farthest = 3 * high;
  for (const value of references) if (value <= farthest) take(value);
  if (log) {
    const factor = Math.max(Math.exp(0.05 * (Math.log(high) - Math.log(low))), 1.1);
    return [Math.max(low / factor, 1e-300), Math.min(high * factor, 1e300)];
  }
  [low, high] = [low, high].map(value => Math.abs(value) < 1e-290 ? 0 : Math.min(Math.max(value, -1e300), 1e300));
  const size = Math.max(Math.abs(low), Math.abs(high)), margin = (high - low) / 20;
  if (zero && low >= 0) return [0, high * 1.06 || 1];
  const wide = margin > size * 1e-9 ? margin : size / 10 || 1;
  return [low - wide, high + wide];
}

// linear_ticks() and log_ticks() of axis.cpp.
function ticks([low, high], wanted, log) {
  const made = [], add = value => { if (value >= low && value <= high) made.push(value); };
  if (log) {
    const first = Math.log10(low), last = Math.log10(high), span = last - first;
    const every = Math.max(1, Math.ceil(span / wanted));
    for (let power = Math.max(Math.floor(first), -324); power <= Math.min(last, 308); ++power)
      if (power % every === 0) (span < 3 ? [1, 2, 5] : [1]).forEach(factor => add(factor * 10 ** power));
    if (made.length > 1) return made;
    made.length = 0;
  }
  const least = (high - low) / wanted, power = 10 ** Math.floor(Math.log10(least));
  const width = power * ([1, 2, 5].find(factor => factor * power >= least * (1 - 1e-9)) ?? 10);
  const first = Math.ceil(low / width - 1e-9);
  for (let i = 0; i <= 4 * wanted; ++i) add(Math.abs(first + i) < 1e-9 ? 0 : (first + i) * width);
  return made;
}

// tick_label() of axis.cpp.
function label(value) {
  const size = Math.abs(value);
  if (size && (size >= 1e15 || size < 1e-3)) return (+value.toPrecision(3)).toExponential().replace('+', '');
  const [unit, name] = [[1e12, 'T'], [1e9, 'G'], [1e6, 'M'], [1e3, 'k']].find(([unit]) =>
    size >= (unit > 1e3 ? unit : 1e4)) ?? [1, ''];
  return +(value / unit).toPrecision(6) + name;
}

// An exponential moving average whose first values are not drawn to 0; gaps stay gaps.
function smoothed(values) {
  let sum = 0, weight = 0;
  return values.map(value => {
    if (value === null) return null;
    sum = smoothing * sum + (1 - smoothing) * value;
    weight = smoothing * weight + 1 - smoothing;
    return sum / weight;
  });
}

function path(xs, ys) {
  let out = '', pen = 'M';
  xs.forEach((x, i) => {
    if (isFinite(x) && isFinite(ys[i])) out += pen + x.toFixed(1) + ',' + ys[i].toFixed(1), pen = 'L';
    else pen = 'M';
  });
  return out;
}

function band(xs, low, high) {
  let out = '', i = 0;
  while (i < xs.length) {
    let end = i;
    while (end < xs.length && isFinite(xs[end]) && isFinite(high[end])) ++end;
    if (end > i) {
      const back = xs.slice(i, end).reverse();
      out += path(xs.slice(i, end), high.slice(i, end)) + path(back, low.slice(i, end).reverse()).replace('M', 'L') + 'Z';
    }
    i = end + 1;
  }
  return out;
}

function draw(svg) {
  const kind = axisOf(svg), range = ranges[kind], log = svg.classList.contains('log');
  const x = scale(range, left, right);
  const lines = all('g.line', svg).map(group => ({group, ...data.lines[group.dataset.line]}));
  const references = all('.reference', svg), shown = [];
  for (const line of lines)
    if (!line.group.matches('.hidden,.hide-superseded .superseded'))
      data.points[line.points][kind].forEach((at, i, xs) => {  // one more point on each side
        if (at !== null && (xs[i + 1] ?? at) >= range[0] && (xs[i - 1] ?? at) <= range[1])
          shown.push(line.mean[i], ...line.low ? [line.low[i], line.high[i]] : []);
      });
  const up = interval(shown, references.map(line => +line.dataset.value), log, 'zero' in svg.dataset);
  const y = scale(up, bottom, top_, log);
  svg.querySelector('.y').innerHTML = ticks(up, log ? 6 : 5, log).map(value =>
    `<path class="grid" d="M${left},${y(value)}H${right}"/>` +
    `<text x="${left - 7}" y="${y(value) + 4}">${label(value)}</text>`).join('');
  svg.querySelector('.x').innerHTML = ticks(range, 6).map(value =>
    `<path class="tick" d="M${x(value)},${bottom}v5"/><text x="${x(value)}" y="${bottom + 18}">${label(value)}</text>`
  ).join('') + `<text x="${(left + right) / 2}" y="${bottom + 35}">${data.axes[kind]}</text>`;
  all('.restart', svg).forEach((mark, i) => {
    const at = x(data.marks[i][kind]);
    mark.setAttribute('d', isFinite(at) ? `M${at},${top_}V${bottom}` : '');
  });
  references.forEach(line => {
    const at = y(+line.dataset.value);
    line.setAttribute('d', `M${left},${isFinite(at) ? at : -bottom}H${right}`);
  });
  for (const line of lines) {
    const xs = data.points[line.points][kind].map(x), ys = line.mean.map(y), high = line.high?.map(y);
    const smooth = smoothing > 0 && 'noisy' in svg.dataset && ys.length > 2;
    const set = (name, d) => line.group.querySelector('.' + name).setAttribute('d', d);
    const alone = (_, i) => isFinite(ys[i]) && (ys.length <= 40 || !(isFinite(ys[i - 1]) || isFinite(ys[i + 1])));
    set('raw', smooth ? path(xs, ys) : '');
    set('mean', path(xs, smooth ? smoothed(line.mean).map(y) : ys));
    set('band', high && !smooth ? band(xs, line.low.map(v => isFinite(y(v)) ? y(v) : bottom), high) : '');
    set('dots', smooth ? '' : xs.map((px, i) => isFinite(px) && alone(px, i)
      ? 'M' + px.toFixed(1) + ',' + ys[i].toFixed(1) + 'h0' : '').join(''));
    set('marked', line.marked.map(i => isFinite(xs[i]) && isFinite((high ?? ys)[i])
      ? `M${xs[i] - 2},${(high ?? ys)[i]}a2,2 0 1 0 4,0a2,2 0 1 0 -4,0` : '').join(''));
    set('broken', line.broken.map(i => isFinite(xs[i])
      ? 'M' + (xs[i] - 3).toFixed(1) + ',' + (top_ + 2) + 'l6,6m0,-6l-6,6' : '').join(''));
  }
}

function element(name, className, content) {
  const made = document.createElement(name);
  made.className = className;
  made.textContent = content;
  return made;
}

function leave() {
  all('.values').forEach(box => box.remove());
  all('.cursor').forEach(line => line.setAttribute('d', ''));
}

function pointerAt(svg, event) {
  const size = svg.getBoundingClientRect();
  return (event.clientX - size.left) * svg.viewBox.baseVal.width / size.width;
}

// The values nearest to the pointer, and a line at the same place in all plots with the same axis.
function hover(svg, event) {
  leave();
  const size = svg.getBoundingClientRect(), at = pointerAt(svg, event);
  if (at < left - 5 || at > right + 5) return;
  const kind = axisOf(svg), x = scale(ranges[kind], left, right), box = element('div', 'values', '');
  let place = null;
  for (const group of all('g.line:not(.superseded):not(.hidden)', svg)) {
    const line = data.lines[group.dataset.line], xs = data.points[line.points][kind];
    let best = -1, distance = Infinity;
    xs.forEach((value, i) => {
      const px = x(value), away = Math.abs(px - at);
      if (line.mean[i] !== null && px > left - 1 && px < right + 1 && away < distance) best = i, distance = away;
    });
    if (best < 0) continue;
    if (place === null) place = x(xs[best]);
    const run = data.runs[line.points], row = element('div', '', '');
    row.append(element('span', 'swatch r' + run, ''), names[run] + ': ' + text(line.mean[best]));
    if (line.low && line.low[best] < line.high[best])
      row.append(element('small', '', text(line.low[best]) + ' to ' + text(line.high[best])));
    if (line.marked.includes(best)) row.append(element('small', '', 'clipped'));
    row.append(element('small', '', 'at ' + (kind ? text(xs[best]) + ' ' + data.axes[kind].split(' ')[0] + ', ' : '') +
                       'step ' + Math.round(data.points[line.points][0][best]).toLocaleString('en-US')));
    box.append(row);
  }
  if (place === null) return;
  for (const other of plots)
    if (axisOf(other) === kind)
      other.querySelector('.cursor').setAttribute('d', 'M' + place + ',' + top_ + 'V' + bottom);
  svg.parentNode.append(box);
  const right_ = (event.clientX - size.left) > size.width / 2;
  box.style.top = '48px';
  box.style[right_ ? 'right' : 'left'] = (right_ ? size.right - event.clientX : event.clientX - size.left) + 26 + 'px';
}

const redraw = () => plots.forEach(draw);

// Shows part of an axis, from a value to another, and of the other axes what the same points have; zoom() shows all.
// A part with less than two steps is not shown.
function zoom(kind = 0, ...part) {
  const [from, to] = kind === 0 ? part.map(Math.round) : part;
  const inside = data.x.map((_, other) => {
    let low = Infinity, high = -Infinity;
    for (const places of data.points)
      places[kind].forEach((at, i) => {
        const value = places[other][i];
        if (at !== null && value !== null && at >= from && at <= to)
          low = Math.min(low, value), high = Math.max(high, value);
      });
    return [low, high];
  });
  if (!part.length) ranges = data.x;
  else if (inside[0][0] < inside[0][1])
    ranges = inside.map(([low, high], other) => other === kind ? [from, to] : low < high ? [low, high] : data.x[other]);
  [control('from').value, control('to').value] = ranges[0].map(Math.round);
  control('whole').disabled = ranges === data.x;
  leave();
  redraw();
}

// Dragging over a plot chooses a part of its axis.
function zoomsByDragging(svg) {
  const selection = svg.querySelector('.selection');
  const inside = event => Math.min(Math.max(pointerAt(svg, event), left), right);
  let start = null;
  const select = d => selection.setAttribute('d', d);
  svg.addEventListener('pointerdown', event => {
    if (event.button !== 0) return;
    start = inside(event);
    svg.setPointerCapture(event.pointerId);
  });
  svg.addEventListener('pointermove', event => {
    if (start !== null) select(`M${start},${top_}H${inside(event)}V${bottom}H${start}Z`);
  });
  svg.addEventListener('pointerup', event => {
    const kind = axisOf(svg), chosen = [start, inside(event)].sort((a, b) => a - b);
    if (start !== null && chosen[1] - chosen[0] > 5) zoom(kind, ...chosen.map(scale([left, right], ...ranges[kind])));
  });
  svg.addEventListener('lostpointercapture', () => { start = null, select(''); });
  svg.addEventListener('dblclick', () => zoom());
}

document.documentElement.classList.add('script');
for (const svg of plots) {
  svg.addEventListener('pointermove', event => hover(svg, event));
  svg.addEventListener('pointerleave', leave);
  zoomsByDragging(svg);
  const button = svg.parentNode.querySelector('button');
  const name = () => { button.textContent = svg.classList.contains('log') ? 'linear' : 'log'; };
  if (!('positive' in svg.dataset)) { button.remove(); continue; }
  name();
  button.addEventListener('click', () => { svg.classList.toggle('log'); name(); draw(svg); });
}
[control('from').value, control('to').value] = ranges[0].map(Math.round);
for (const id of ['from', 'to'])
  control(id).addEventListener('change', () => zoom(0, +control('from').value, +control('to').value));
control('whole').addEventListener('click', () => zoom());
control('axis').addEventListener('change', event => {
  axis = +event.target.value;
  redraw();
});
control('smoothing').addEventListener('input', event => {
  smoothing = +event.target.value;
  event.target.nextElementSibling.textContent = smoothing.toFixed(2);
  redraw();
});
control('superseded')?.addEventListener('change', event => {
  document.body.classList.toggle('hide-superseded', !event.target.checked);
  redraw();
});
all('.bar .run').forEach((button, run) => {
  button.addEventListener('click', () => {
    const shown = button.getAttribute('aria-pressed') !== 'true';
    button.setAttribute('aria-pressed', shown);
    ofRun(run).forEach(line => line.classList.toggle('hidden', !shown));
    redraw();
  });
  const dim = on => names.forEach((_, other) => {
    if (other !== run) ofRun(other).forEach(line => line.classList.toggle('dim', on));
  });
  button.addEventListener('pointerenter', () => dim(true));
  button.addEventListener('pointerleave', () => dim(false));
});
)js";

const char* const kPageScriptHash = "zedOkLTkmE7yT5UEydpmO7bq+bPsDlLRWgPlFLpfrEo=";

}  // namespace hyperion::report
