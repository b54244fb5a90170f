#include "app/report/page.h"

namespace hyperion::report {

// The drawing of plots; page_controls.cpp goes on.
const char* const kPlotScript = R"js(
'use strict';
const data = JSON.parse(document.getElementById('data').textContent);
const [left, right, top_, bottom] = data.frame;
const all = (selector, from = document) => [...from.querySelectorAll(selector)];
const control = id => document.getElementById(id);
const plots = all('svg.plot');
const folders = all('.bar .run').map(button => button.textContent.trim());  // or names of the command line
const names = [...folders];  // as the reader calls them
const views = new Map(plots.map(svg => [svg, {y: {}}]));  // y: the range that was chosen, by mode()
const titleOf = svg => svg.getAttribute('aria-label');
let axis = 0, smoothing = 0;
let baseline = data.baseline, ratio = data.ratio;  // the run that others are compared with, or null; and how
let ranges = data.x;  // what the axes show: all steps, or those that were chosen
let ready = true;     // to draw
let zoomed = null;    // the arguments of zoom() that made them; null: all steps

const ofRun = run => all('svg .r' + run);
const text = (value, digits = 6) => value.toLocaleString('en-US', {maximumSignificantDigits: digits});
const changeText = value => ratio ? '\u00d7 ' + text(value, 4)
  : '\u0394\u00a0' + (value < 0 ? '\u2212' : value > 0 ? '+' : '') + text(Math.abs(value), 4);
const axisOf = svg => +(svg.dataset.axis ?? axis);

// Returns the function that maps a value to its place from `start` to `end`; not finite where the axis has none.
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

// The finite points of a line, by their place on an axis.
function curve(line, kind) {
  const points = data.points[line.points][kind].map((x, i) => [x, line.mean[i]]);
  return points.filter(([x, y]) => x !== null && y !== null).sort((a, b) => a[0] - b[0]);
}

// The value of a curve at a place, between its points; null outside of them.
function valueAt(points, x) {
  let low = 0, high = points.length - 1;
  if (high < 0 || x === null || x < points[0][0] || x > points[high][0]) return null;
  while (high - low > 1) {
    const middle = (low + high) >> 1;
    if (points[middle][0] <= x) low = middle; else high = middle;
  }
  const [[x0, y0], [x1, y1]] = [points[low], points[high]];
  return x1 > x0 ? y0 + (x - x0) / (x1 - x0) * (y1 - y0) : y0;
}

function against(value, base) {
  const result = value === null || base === null ? null : ratio ? value / base : value - base;
  return Number.isFinite(result) ? result : null;
}

const linesOf = svg => all('g.line', svg).map(group => ({group, ...data.lines[group.dataset.line]}));
const lineOf = (svg, run) => linesOf(svg).find(line => line.group.matches(`.r${run}:not(.superseded)`));
const isHidden = line => line.group.matches('.hidden,.hide-superseded .superseded');
const compared = svg => baseline !== null && lineOf(svg, baseline) !== undefined;
const mode = svg => !compared(svg) ? 'value' : ratio ? 'ratio' : 'difference';

// The lines of a plot as they are drawn: with a baseline, what they are to its line at the same place.
function shownLines(svg) {
  const lines = linesOf(svg), kind = axisOf(svg);
  if (!compared(svg)) return lines;
  const base = curve(lineOf(svg, baseline), kind);
  return lines.map(line => {
    const bases = data.points[line.points][kind].map(x => valueAt(base, x));
    const of = values => values?.map((value, i) => against(value, bases[i]));
    return {...line, values: line.mean, mean: of(line.mean), low: of(line.low), high: of(line.high)};
  });
}

const unitOf = svg => svg.parentNode.querySelector('figcaption small');
function nameUnit(svg) {
  const view = views.get(svg), unit = view.unit ??= unitOf(svg).textContent;
  const name = names[baseline];
  unitOf(svg).textContent = baseline === null ? unit : compared(svg)
    ? `${ratio ? 'ratio' : 'difference'} to ${name}` : `${unit}${unit && '; '}${name} has none`;
}

// The range of the y axis: what the reader chose, and else `automatic`.
function chosenRange(svg, automatic, log) {
  const [low, high] = views.get(svg).y[mode(svg)] ?? [];
  const up = [low > 0 || !log ? low ?? automatic[0] : automatic[0], high ?? automatic[1]];
  return up[0] < up[1] ? up : automatic;
}

function draw(svg) {
  if (!ready) return;
  const kind = axisOf(svg), range = ranges[kind], plain = !compared(svg);
  const log = svg.classList.contains('log') && (plain || ratio);
  const x = scale(range, left, right);
  const lines = shownLines(svg);
  const references = all('.reference', svg), shown = [];
  for (const line of lines)
    if (!isHidden(line))
      data.points[line.points][kind].forEach((at, i, xs) => {  // one more point on each side
        if (at !== null && (xs[i + 1] ?? at) >= range[0] && (xs[i - 1] ?? at) <= range[1])
          shown.push(line.mean[i], ...line.low ? [line.low[i], line.high[i]] : []);
      });
  const automatic = interval(shown, plain ? references.map(line => +line.dataset.value) : [], log, plain && 'zero' in svg.dataset);
  const up = chosenRange(svg, automatic, log);
  nameUnit(svg);
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
    const at = plain ? y(+line.dataset.value) : NaN;
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
  for (const line of shownLines(svg).filter(({group}) => !group.matches('.superseded,.hidden'))) {
    const xs = data.points[line.points][kind];
    let best = -1, distance = Infinity;
    xs.forEach((value, i) => {
      const px = x(value), away = Math.abs(px - at);
      if (line.mean[i] !== null && px > left - 1 && px < right + 1 && away < distance) best = i, distance = away;
    });
    if (best < 0) continue;
    if (place === null) place = x(xs[best]);
    const run = data.runs[line.points], row = element('div', '', '');
    row.append(element('span', 'swatch r' + run, ''), names[run] + ': ' + text((line.values ?? line.mean)[best]));
    if (line.values) row.append(element('small', '', run === baseline ? 'baseline' : changeText(line.mean[best])));
    if (!line.values && line.low && line.low[best] < line.high[best])
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
  if (!part.length) ranges = data.x, zoomed = null;
  else if (inside[0][0] < inside[0][1])
    zoomed = [kind, from, to], ranges = inside.map(([low, high], other) => other === kind ? [from, to] : low < high ? [low, high] : data.x[other]);
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
)js";

}  // namespace hyperion::report
