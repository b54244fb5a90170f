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
.first{max-height:44vh;overflow-y:auto}.first th{position:sticky;top:0;z-index:1;background:var(--card)}.first td{min-width:9em}
.first td:first-child{position:sticky;left:0;background:var(--card)}.first td:first-child code{overflow-wrap:normal;white-space:nowrap}
.rename{border:0;background:none;padding:0 4px;color:var(--soft)}.renaming{font:inherit;max-width:100%}td small.delta{color:var(--text)}
.warn{color:var(--warn)}progress{width:105px;height:7px;display:block;margin-top:3px;accent-color:var(--c)}
.bar{display:none;position:sticky;top:0;z-index:2;gap:10px 22px;align-items:center;flex-wrap:wrap;padding:10px 0;
background:var(--back)}
.script .bar{display:flex}html:not(.script) .note span{display:none}.bar label{display:flex;gap:7px;align-items:center;color:var(--soft)}
.bar output{min-width:2.6em;font-variant-numeric:tabular-nums}
button,select,input[type=number],input[type=text]{font:inherit;color:inherit;background:var(--card);border:1px solid var(--line);border-radius:6px;
padding:3px 10px;cursor:pointer}button:disabled{opacity:.45;cursor:default}input[type=number]{width:8em;cursor:text}input[type=text]{cursor:text}
button[aria-pressed=false]{opacity:.45;text-decoration:line-through}
.plots{display:grid;grid-template-columns:repeat(auto-fill,minmax(min(100%,560px),1fr));gap:14px}
figure{margin:0;padding:10px 12px 4px;background:var(--card);border:1px solid var(--line);border-radius:8px;
position:relative}
figcaption{display:flex;gap:8px;align-items:baseline;min-height:27px;font-weight:600;overflow-wrap:anywhere}
figcaption small{font-weight:400;margin-right:auto}figcaption button,.tools button{font-weight:400;font-size:12px;padding:1px 8px}
figcaption button{display:none}.script figcaption button{display:block}
.tools{display:flex;flex-wrap:wrap;gap:4px 10px;align-items:center;padding:2px 0 8px;color:var(--soft);font-size:12px}
.tools input[type=number]{width:7.5em;padding:1px 6px}[hidden]{display:none!important}
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
@media print{.script .bar,.script figcaption button,.rename,.tools,.note span{display:none}figure,tr{break-inside:avoid}}
)css";

}  // namespace hyperion::report
