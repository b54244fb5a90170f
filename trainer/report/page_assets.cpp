#include "trainer/report/page_assets.h"

namespace hyperion::trainer {

// The colours are those of Okabe and Ito, which people with any kind of colour blindness tell apart, a little
// lighter on a dark page. Runs 8 to 14 have them again, dashed.
const char* const kPageStyle = R"css(
:root{color-scheme:light dark;--back:#f6f7f9;--card:#fff;--text:#1b1f24;--soft:#5c6670;--line:#d5dae0;--grid:#e8ebef;
--warn:#b3261e;--c0:#0072b2;--c1:#d55e00;--c2:#009e73;--c3:#cc79a7;--c4:#d99400;--c5:#56b4e9;--c6:#555b61}
@media(prefers-color-scheme:dark){:root{--back:#14171b;--card:#1c2026;--text:#e4e7eb;--soft:#9aa5b1;--line:#3a424c;
--grid:#2a3038;--warn:#ff8a80;--c0:#4aa3e0;--c1:#f07f30;--c2:#1fbf92;--c3:#e39bc6;--c4:#f0b840;--c5:#a5dcff;--c6:#b8bec5}}
*{box-sizing:border-box}
body{margin:0 auto;max-width:1800px;padding:20px 24px 60px;background:var(--back);color:var(--text);
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
tr:last-child td{border-bottom:0}th{font-weight:600;color:var(--soft);font-size:12px;white-space:nowrap}
td.run{min-width:270px;overflow-wrap:anywhere}td.number{font-variant-numeric:tabular-nums;white-space:nowrap}td.large{font-size:16px;font-weight:600}
td small{display:block;font-weight:400;font-size:12px}
td code,li code{font:12px/1.5 ui-monospace,"DejaVu Sans Mono",monospace;overflow-wrap:anywhere;white-space:pre-wrap}
.warn{color:var(--warn)}progress{width:130px;height:7px;display:block;margin-top:3px;accent-color:var(--c)}
.bar{display:none;position:sticky;top:0;z-index:2;gap:10px 22px;align-items:center;flex-wrap:wrap;padding:10px 0;
background:var(--back)}
.script .bar{display:flex}.bar label{display:flex;gap:7px;align-items:center;color:var(--soft)}
.bar output{min-width:2.6em;font-variant-numeric:tabular-nums}
button,select{font:inherit;color:inherit;background:var(--card);border:1px solid var(--line);border-radius:6px;
padding:3px 10px;cursor:pointer}button[aria-pressed=false]{opacity:.45;text-decoration:line-through}
.plots{display:grid;grid-template-columns:repeat(auto-fill,minmax(min(100%,560px),1fr));gap:14px}
figure{margin:0;padding:10px 12px 4px;background:var(--card);border:1px solid var(--line);border-radius:8px;
position:relative}
figcaption{display:flex;gap:8px;align-items:baseline;min-height:27px;font-weight:600;overflow-wrap:anywhere}
figcaption small{font-weight:400}figcaption button{display:none;margin-left:auto;font-weight:400;font-size:12px;
padding:1px 8px}.script figcaption button{display:block}
svg{display:block;width:100%;height:auto}svg text{font-size:12px;fill:var(--soft)}
.y text{text-anchor:end}.x text{text-anchor:middle}svg path{fill:none;vector-effect:non-scaling-stroke}
.grid{stroke:var(--grid)}.frame,.tick{stroke:var(--line)}.cursor{stroke:var(--soft);stroke-dasharray:3 3}
.restart{stroke:var(--c);stroke-dasharray:2 4;opacity:.75}
.mean{stroke:var(--c);stroke-width:1.8;stroke-linejoin:round}.dots{stroke:var(--c);stroke-width:5.5;
stroke-linecap:round}svg .band{fill:var(--c);opacity:.2}.raw{stroke:var(--c);opacity:.28}
.broken{stroke:var(--warn);stroke-width:2}
.r7 .mean,.r8 .mean,.r9 .mean,.r10 .mean,.r11 .mean,.r12 .mean,.r13 .mean{stroke-dasharray:7 4}
.superseded{opacity:.3}.superseded .mean{stroke-width:1.2}.superseded .dots{stroke-width:3.5}
.hide-superseded .superseded,svg.log .linear,svg:not(.log) .logarithmic{display:none}
svg:not([data-axis]) .x1,svg:not([data-axis]) .x2{display:none}
.axis1 svg:not([data-axis]) .x1,.axis2 svg:not([data-axis]) .x2{display:inline}
.axis1 svg:not([data-axis]) .x0,.axis2 svg:not([data-axis]) .x0{display:none}
.hidden{display:none}.dim{opacity:.15}
.values{position:absolute;z-index:3;pointer-events:none;background:var(--card);border:1px solid var(--line);
border-radius:6px;padding:6px 10px;font-size:12px;box-shadow:0 3px 12px #0003;max-width:75%;
font-variant-numeric:tabular-nums}
.values div{overflow-wrap:anywhere}.values small{margin-left:6px}
details{margin-top:14px}summary{cursor:pointer;font-size:16px;font-weight:600;margin:20px 0 10px}
summary small{font-weight:400;font-size:13px}
ul{margin:0;padding:10px 12px 10px 30px}
)css";

// Its hash is below.
const char* const kPageScript = R"js(
'use strict';
const data = JSON.parse(document.getElementById('data').textContent);
const [left, right, top_, bottom] = data.frame;
const all = (selector, from = document) => [...from.querySelectorAll(selector)];
const plots = all('svg.plot');
const names = all('.bar .run').map(button => button.textContent.trim());
let axis = 0, smoothing = 0;

const ofRun = run => all('svg .r' + run);
const text = value => value.toLocaleString('en-US', {maximumSignificantDigits: 6});

function scales(svg) {
  const log = svg.classList.contains('log');
  const [low, high] = (log ? svg.dataset.log : svg.dataset.linear).split(' ').map(Number);
  const kind = +(svg.dataset.axis ?? axis), [from, to] = data.x[kind];
  const part = log ? v => (Math.log(v) - Math.log(low)) / (Math.log(high) - Math.log(low))
                   : v => (v - low) / (high - low);
  return {kind, x: v => v === null ? NaN : left + (v - from) / (to - from) * (right - left),
          y: v => v === null || (log && v <= 0) ? NaN : bottom - part(v) * (bottom - top_)};
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
  const {kind, x, y} = scales(svg);
  for (const group of all('g.line', svg)) {
    const line = data.lines[group.dataset.line], xs = data.points[line.points][kind].map(x);
    const ys = line.mean.map(y), smooth = smoothing > 0 && 'noisy' in svg.dataset && ys.length > 2;
    const part = name => group.querySelector('.' + name);
    const alone = (_, i) => isFinite(ys[i]) && (ys.length <= 40 || !(isFinite(ys[i - 1]) || isFinite(ys[i + 1])));
    part('raw').setAttribute('d', smooth ? path(xs, ys) : '');
    part('mean').setAttribute('d', path(xs, smooth ? smoothed(line.mean).map(y) : ys));
    part('band').setAttribute('d', line.low && !smooth
      ? band(xs, line.low.map(v => isFinite(y(v)) ? y(v) : bottom), line.high.map(y)) : '');
    part('dots').setAttribute('d', smooth ? '' : xs.map((px, i) => isFinite(px) && alone(px, i)
      ? 'M' + px.toFixed(1) + ',' + ys[i].toFixed(1) + 'h0' : '').join(''));
    part('broken').setAttribute('d', line.broken.map(i => isFinite(xs[i])
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

// The values nearest to the pointer, and a line at the same place in all plots with the same axis.
function hover(svg, event) {
  leave();
  const size = svg.getBoundingClientRect(), scale = 640 / size.width;
  const at = (event.clientX - size.left) * scale;
  if (at < left - 5 || at > right + 5) return;
  const {kind, x} = scales(svg), box = element('div', 'values', '');
  let place = null;
  for (const group of all('g.line:not(.superseded):not(.hidden)', svg)) {
    const line = data.lines[group.dataset.line], xs = data.points[line.points][kind];
    let best = -1, distance = Infinity;
    xs.forEach((value, i) => {
      const away = Math.abs(x(value) - at);
      if (line.mean[i] !== null && away < distance) best = i, distance = away;
    });
    if (best < 0) continue;
    if (place === null) place = x(xs[best]);
    const run = data.runs[line.points], row = element('div', '', '');
    row.append(element('span', 'swatch r' + run, ''), names[run] + ': ' + text(line.mean[best]));
    if (line.low && line.low[best] < line.high[best])
      row.append(element('small', '', text(line.low[best]) + ' to ' + text(line.high[best])));
    row.append(element('small', '', 'at ' + (kind ? text(xs[best]) + ' ' + data.axes[kind] + ', ' : '') +
                       'step ' + Math.round(data.points[line.points][0][best]).toLocaleString('en-US')));
    box.append(row);
  }
  if (place === null) return;
  for (const other of plots)
    if (scales(other).kind === kind)
      other.querySelector('.cursor').setAttribute('d', 'M' + place + ',' + top_ + 'V' + bottom);
  svg.parentNode.append(box);
  const right_ = (event.clientX - size.left) > size.width / 2;
  box.style.top = '48px';
  box.style[right_ ? 'right' : 'left'] = (right_ ? size.right - event.clientX : event.clientX - size.left) + 26 + 'px';
}

const redraw = () => plots.forEach(draw);
document.documentElement.classList.add('script');
for (const svg of plots) {
  svg.addEventListener('pointermove', event => hover(svg, event));
  svg.addEventListener('pointerleave', leave);
  const button = svg.parentNode.querySelector('button');
  const label = () => { button.textContent = svg.classList.contains('log') ? 'linear' : 'log'; };
  if (!svg.dataset.log) { button.remove(); continue; }
  label();
  button.addEventListener('click', () => { svg.classList.toggle('log'); label(); draw(svg); });
}
document.getElementById('axis').addEventListener('change', event => {
  axis = +event.target.value;
  document.body.classList.remove('axis0', 'axis1', 'axis2');
  document.body.classList.add('axis' + axis);
  redraw();
});
document.getElementById('smoothing').addEventListener('input', event => {
  smoothing = +event.target.value;
  event.target.nextElementSibling.textContent = smoothing.toFixed(2);
  redraw();
});
document.getElementById('superseded')?.addEventListener('change', event =>
  document.body.classList.toggle('hide-superseded', !event.target.checked));
all('.bar .run').forEach((button, run) => {
  button.addEventListener('click', () => {
    const shown = button.getAttribute('aria-pressed') !== 'true';
    button.setAttribute('aria-pressed', shown);
    ofRun(run).forEach(line => line.classList.toggle('hidden', !shown));
  });
  const dim = on => names.forEach((_, other) => {
    if (other !== run) ofRun(other).forEach(line => line.classList.toggle('dim', on));
  });
  button.addEventListener('pointerenter', () => dim(true));
  button.addEventListener('pointerleave', () => dim(false));
});
)js";

const char* const kPageScriptHash = "2H+BWwxibTZZp0tqJFC3gmrpDumgD/fIWTpS5ggnoq8=";

}  // namespace hyperion::trainer
