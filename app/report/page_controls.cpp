#include "app/report/page.h"

namespace hyperion::report {

// The controls of the page: what the reader chooses, keeps over a refresh and saves as a file.
const char* const kControlScript = R"js(
// Marks the baseline's values, and each other run's difference from it at the last step that both have.
function compareNewest() {
  all('.delta').forEach(note => note.remove());
  if (baseline === null) return;
  all('td.run .name').forEach((name, run) => { if (run === baseline) name.parentNode.append(element('small', 'delta', 'baseline')); });
  for (const cell of all('td[data-plot]')) {
    const svg = plots.find(svg => titleOf(svg) === cell.dataset.plot), run = +cell.parentNode.dataset.run;
    const lines = svg && [run, baseline].map(of => lineOf(svg, of));
    if (run === baseline || !lines?.every(line => line)) continue;
    const curves = lines.map(line => curve(line, 0)), last = curves.map(points => points.at(-1)?.[0] ?? NaN);
    const step = Math.min(...last), change = against(...curves.map(points => valueAt(points, step)));
    if (change === null) continue;
    cell.append(element('small', 'delta', changeText(change) + (step < last[0] ? ' at step ' + text(Math.round(step)) : '')));
  }
}

function redrawAll() {
  for (const svg of plots) svg.parentNode.querySelector('.log')?.toggleAttribute('disabled', mode(svg) === 'difference');
  compareNewest();
  leave();
  redraw();
}

function rename(run, name) {
  names[run] = name.trim() || folders[run];
  all(`.name[data-run="${run}"]`).forEach(place => { place.textContent = names[run], place.title = folders[run]; });
  if (control('baseline')) control('baseline').options[run + 1].textContent = names[run];
  redrawAll();
}

function show(run, shown) {
  all('.bar .run')[run].setAttribute('aria-pressed', shown);
  ofRun(run).forEach(line => line.classList.toggle('hidden', !shown));
}

function compare(run, asRatio) {
  [baseline, ratio] = [run, asRatio];
  if (control('baseline')) [control('baseline').value, control('ratio').value] = [run ?? '', ratio ? '1' : ''];
  redrawAll();
}

function setLog(svg, log) {
  const button = svg.parentNode.querySelector('.log');
  if (!button) return;  // not all values are positive
  if (log !== undefined) views.get(svg).log = log, svg.classList.toggle('log', log), draw(svg);
  button.textContent = svg.classList.contains('log') ? 'linear' : 'log';
}

function save(name, type, content) {
  const link = element('a', '', '');
  link.href = URL.createObjectURL(content instanceof Blob ? content : new Blob([content], {type}));
  link.download = name.replace(/[^\w.-]+/g, '-');
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 60000);
}

// Returns a plot's values as CSV, a row for each point.
function csvOf(svg) {
  const kind = axisOf(svg), [low, high] = ranges[kind], change = mode(svg) !== 'value';
  const rows = [['run', 'repeated after a restart', ...data.axes, titleOf(svg), 'smallest', 'largest',
                 ...change ? [`${mode(svg)} to ${names[baseline]}`] : []]];
  for (const line of shownLines(svg).filter(line => !isHidden(line))) {
    const places = data.points[line.points], plain = data.lines[line.group.dataset.line];
    places[kind].forEach((at, i) => {
      if (at === null || at < low || at > high) return;
      rows.push([names[data.runs[line.points]], +line.group.matches('.superseded'), ...places.map(axis => axis[i]), plain.mean[i],
                 (plain.low ?? plain.mean)[i], (plain.high ?? plain.mean)[i], ...change ? [line.mean[i]] : []]);
    });
  }
  // A text that a spreadsheet would take for a formula begins with a quote.
  const field = value => typeof value === 'string' ? '"' + value.replace(/^(?=[=+@\t\r-])/, "'").replaceAll('"', '""') + '"' : value ?? '';
  return rows.map(row => row.map(field).join(',') + '\r\n').join('');
}

// The plot with its title and the names of its runs as a picture that needs no page: styles are attributes.
function pictureOf(svg) {
  const made = (name, attributes, content = '') => {
    const node = document.createElementNS('http://www.w3.org/2000/svg', name);
    for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, value);
    node.textContent = content;
    return node;
  };
  const picture = svg.cloneNode(true), nodes = all('*', picture), page = getComputedStyle(document.body);
  all('*', svg).forEach((node, i) => {
    const style = getComputedStyle(node);
    for (const name of ['fill', 'stroke', 'stroke-width', 'stroke-dasharray', 'stroke-linecap', 'stroke-linejoin', 'opacity', 'display',
                        'font-size', 'font-family', 'text-anchor'])
      nodes[i].setAttribute(name, style.getPropertyValue(name));
    nodes[i].removeAttribute('class');
  });
  all('[d=""],[display=none]', picture).forEach(node => node.remove());
  const runs = names.map((_, run) => run).filter(run => lineOf(svg, run) && !isHidden(lineOf(svg, run)));
  const {width, height} = svg.viewBox.baseVal, top = 30, whole = top + height + 17 * runs.length + 8;
  const style = {'font-family': page.fontFamily, 'font-size': '12px', fill: page.color};
  picture.prepend(made('rect', {x: 0, y: -top, width, height: whole, fill: getComputedStyle(svg.parentNode).backgroundColor}),
                  made('text', {...style, x: 12, y: 14 - top, 'font-size': '14px'}, `${titleOf(svg)}  ${unitOf(svg).textContent}`));
  runs.forEach((run, i) => {
    const y = height + 17 * i + 6, line = getComputedStyle(lineOf(svg, run).group.querySelector('.mean'));
    picture.append(made('path', {d: `M${left},${y - 4}h22`, stroke: line.stroke, 'stroke-width': 3, 'stroke-dasharray': line.strokeDasharray, fill: 'none'}),
                   made('text', {...style, x: left + 30, y}, names[run] + (run === baseline ? ' (baseline)' : '')));
  });
  for (const name of picture.getAttributeNames()) if (name !== 'viewBox') picture.removeAttribute(name);
  picture.setAttribute('viewBox', `0 ${-top} ${width} ${whole}`);
  picture.setAttribute('width', width);
  picture.setAttribute('height', whole);
  return picture;
}

// The picture on a canvas: the page's policy lets no image be loaded, the picture's own included.
function canvasOf(picture, enlarged) {
  const {x, y, width, height} = picture.viewBox.baseVal, canvas = element('canvas', '', '');
  [canvas.width, canvas.height] = [width * enlarged, height * enlarged];
  const pen = canvas.getContext('2d');
  pen.setTransform(enlarged, 0, 0, enlarged, -x * enlarged, -y * enlarged);
  const paint = node => {
    const of = (name, without = 'none') => node.getAttribute(name) ?? without, number = name => parseFloat(of(name, '0'));
    pen.save();
    pen.globalAlpha *= parseFloat(of('opacity', '1'));
    [pen.fillStyle, pen.strokeStyle, pen.lineWidth] = [of('fill'), of('stroke'), parseFloat(of('stroke-width', '1'))];
    [pen.lineCap, pen.lineJoin, pen.font] = [of('stroke-linecap'), of('stroke-linejoin'), of('font-size') + ' ' + of('font-family')];
    pen.textAlign = {middle: 'center', end: 'right'}[of('text-anchor')] ?? 'left';
    pen.setLineDash(of('stroke-dasharray').match(/[\d.]+/g)?.map(Number) ?? []);
    if (node.localName === 'rect') pen.fillRect(number('x'), number('y'), number('width'), number('height'));
    if (node.localName === 'text') pen.fillText(node.textContent, number('x'), number('y'));
    if (node.localName === 'svg' && node !== picture) {
      pen.beginPath(), pen.rect(number('x'), number('y'), number('width'), number('height')), pen.clip();
    }
    if (node.localName === 'path') {
      const shape = new Path2D(of('d'));
      if (of('fill') !== 'none') pen.fill(shape);
      if (of('stroke') !== 'none') pen.stroke(shape);
    }
    for (const child of node.children) paint(child);
    pen.restore();
  };
  paint(picture);
  return canvas;
}

// The row under a plot's caption: its y range, and what it shows as a file.
function addTools(svg) {
  const caption = svg.parentNode.querySelector('figcaption'), tools = element('div', 'tools', ''), view = views.get(svg);
  const button = (name, title, action) => {
    const made = element('button', '', name);
    [made.type, made.title] = ['button', title];
    made.addEventListener('click', action);
    return made;
  };
  const fields = ['y from', 'to'].map(name => {
    const label = element('label', '', name + ' '), field = element('input', '', '');
    [field.type, field.step] = ['number', 'any'];
    field.addEventListener('change', () => {
      view.y[mode(svg)] = fields.map(({value}) => value === '' ? null : +value);
      draw(svg);
    });
    label.append(field);
    tools.append(label);
    return field;
  });
  const file = kind => `${titleOf(svg)}.${kind}`;
  tools.append(button('all', 'the whole range of y', () => { delete view.y[mode(svg)], view.showRange(), draw(svg); }),
               button('CSV', 'the points that are shown', () => save(file('csv'), 'text/csv', csvOf(svg))),
               button('SVG', 'the plot as a drawing', () => save(file('svg'), 'image/svg+xml', new XMLSerializer().serializeToString(pictureOf(svg)))),
               button('PNG', 'the plot as a picture', () => canvasOf(pictureOf(svg), 2).toBlob(blob => save(file('png'), '', blob))));
  view.showRange = () => fields.forEach((field, i) => { field.value = view.y[mode(svg)]?.[i] ?? ''; });
  view.open = open => { tools.hidden = !open, opener.setAttribute('aria-expanded', open), view.showRange(); };
  const opener = button('\u22ef', 'y range, CSV, SVG, PNG', () => view.open(tools.hidden));
  caption.append(opener);
  caption.after(tools);
  view.open(false);
}

// Things of the page by a text; equal ones are numbered.
function byText(things, textOf) {
  const found = new Map();
  for (const thing of things) {
    let key = textOf(thing), again = 1;
    while (found.has(key)) key = textOf(thing) + ' ' + ++again;
    found.set(key, thing);
  }
  return found;
}
const folded = () => byText(all('details'), part => part.querySelector('summary').firstChild.textContent);
const plotsByTitle = byText(plots, titleOf), tablesByPlace = byText(all('.scroll'), () => 'table');
const switches = ['superseded', 'refresh'].map(control).filter(box => box);
const secondsOfAxis = () => ({minutes: 60, hours: 3600, days: 86400})[data.axes[2].split(' ')[0]] ?? 1;  // its unit can grow

// Keeps all that the reader chose with this tab's entry of the page, over a reload. Storage may be refused to a file, and a page
// that is being left can no longer write there.
function keep() {
  const unit = zoomed?.[0] === 2 ? secondsOfAxis() : 1;
  history.replaceState({
    axis, smoothing, ratio, baseline: folders[baseline], zoomed: zoomed && [zoomed[0], zoomed[1] * unit, zoomed[2] * unit],
    names: folders.map((folder, run) => [folder, names[run]]).filter(([folder, name]) => name !== folder),
    hidden: folders.filter((_, run) => all('.bar .run')[run].getAttribute('aria-pressed') !== 'true'),
    switches: switches.map(box => [box.id, box.checked]), folded: [...folded()].map(([key, part]) => [key, part.open]),
    plots: [...plotsByTitle].map(([key, svg]) => [key, {log: views.get(svg).log, y: views.get(svg).y, open: !svg.parentNode.querySelector('.tools').hidden}]),
    scroll: [scrollX, scrollY], tables: [...tablesByPlace].map(([key, table]) => [key, table.scrollLeft, table.scrollTop]),
  }, '');
}

function restore(kept) {
  const runOf = folder => folders.indexOf(folder);
  ready = false;
  const set = (id, value, event) => { control(id).value = value, control(id).dispatchEvent(new Event(event)); };
  set('axis', kept.axis, 'change');
  set('smoothing', kept.smoothing, 'input');
  for (const [folder, name] of kept.names) if (runOf(folder) >= 0) rename(runOf(folder), name);
  for (const folder of kept.hidden) if (runOf(folder) >= 0) show(runOf(folder), false);
  for (const [id, on] of kept.switches) if (control(id) && control(id).checked !== on) control(id).click();
  for (const [key, svg] of plotsByTitle) {
    const {log, y, open} = new Map(kept.plots).get(key) ?? {};
    if (!y) continue;
    views.get(svg).y = y;
    setLog(svg, log);
    views.get(svg).open(open);
  }
  compare(runOf(kept.baseline) < 0 ? null : runOf(kept.baseline), kept.ratio);
  ready = true;
  redrawAll();
  if (kept.zoomed) {
    const [kind, ...part] = kept.zoomed, unit = kind === 2 ? secondsOfAxis() : 1;
    zoom(kind, ...part.map(at => at / unit));
  }
  plots.forEach(svg => views.get(svg).showRange());
  for (const [key, open] of kept.folded) folded().get(key)?.toggleAttribute('open', open);
  for (const [key, ...at] of kept.tables) tablesByPlace.get(key)?.scrollTo(...at);
  scrollTo(...kept.scroll);
}

// Loads the page again every `seconds`, but not while it is hidden or in use: 2 seconds after the last key or movement of the wheel,
// with no pointer down, no text selected and no field half filled.
function reloadEvery(seconds) {
  const due = Date.now() + 1000 * seconds;
  let busy = 0, pressed = false, unfinished = false;
  const on = (event, action) => addEventListener(event, action, {capture: true, passive: true});
  for (const event of ['keydown', 'wheel', 'touchmove', 'pointerdown']) on(event, () => { busy = Date.now(); });
  on('pointerdown', () => { pressed = true; });
  for (const event of ['pointerup', 'pointercancel']) on(event, () => { pressed = false; });
  on('input', event => { unfinished = event.target.matches('[type=number],[type=text]'); });
  for (const event of ['change', 'focusout']) on(event, () => { unfinished = false; });
  setInterval(() => {
    if (Date.now() < due || Date.now() < busy + 2000 || document.hidden || pressed || unfinished) return;
    if (!control('refresh').checked || !getSelection().isCollapsed || document.querySelector('.renaming')) return;
    keep();
    location.reload();
  }, 100);
}

document.documentElement.classList.add('script');
for (const svg of plots) {
  svg.addEventListener('pointermove', event => hover(svg, event));
  svg.addEventListener('pointerleave', leave);
  zoomsByDragging(svg);
  const button = svg.parentNode.querySelector('.log');
  if (!('positive' in svg.dataset)) button.remove();
  setLog(svg);
  button.addEventListener('click', () => setLog(svg, !svg.classList.contains('log')));
  addTools(svg);
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
for (const id of ['baseline', 'ratio'])
  control(id)?.addEventListener('change', () => {
    compare(control('baseline').value === '' ? null : +control('baseline').value, control('ratio').value !== '');
    plots.forEach(svg => views.get(svg).showRange());
  });
all('.bar .run').forEach((button, run) => {
  button.addEventListener('click', () => {
    show(run, button.getAttribute('aria-pressed') !== 'true');
    redraw();
  });
  const dim = on => names.forEach((_, other) => {
    if (other !== run) ofRun(other).forEach(line => line.classList.toggle('dim', on));
  });
  button.addEventListener('pointerenter', () => dim(true));
  button.addEventListener('pointerleave', () => dim(false));
});
all('td.run .name').forEach((name, run) => {
  const pencil = element('button', 'rename', '\u270e');
  [pencil.type, pencil.title] = ['button', 'rename this run on the page'];
  name.after(pencil);
  pencil.addEventListener('click', () => {
    const field = element('input', 'renaming', '');
    const end = value => {
      if (!name.hidden) return;  // removing the field takes the focus from it
      name.hidden = false, field.remove(), rename(run, value);
    };
    [field.type, field.value, field.placeholder, name.hidden] = ['text', names[run], folders[run], true];
    field.addEventListener('blur', () => { end(field.value); });
    field.addEventListener('keydown', ({key}) => {
      if (key === 'Enter') field.blur();
      if (key === 'Escape') end(names[run]);
    });
    name.before(field);
    field.select();
  });
});
if (baseline !== null) compare(baseline, ratio);
history.scrollRestoration = 'manual';
if (history.state?.plots) restore(history.state);
let keeping = 0;
for (const event of ['click', 'change', 'input', 'pointerup', 'dblclick', 'toggle', 'scroll'])
  addEventListener(event, () => { clearTimeout(keeping), keeping = setTimeout(keep, 300); }, {capture: true, passive: true});
if (data.refresh) reloadEvery(data.refresh);
)js";

const char* const kPageScriptHash = "9bhfkCQIz/EX2rDFaPVkSRDsMlL2Pvgc4eFB0Qi2tk8=";

}  // namespace hyperion::report
