"use strict";
// Draws every plot of the page. Colours of text and grid come from the style sheet, so that plots
// follow light, dark and print without being drawn again.
(() => {
  const NARROW = 520, PRINTED = 660, LEGEND_LINE = 19;
  const boxes = [...document.querySelectorAll("figure.plot")];

  function draw(box, width) {
    const canvas = box.querySelector(".canvas");
    const {data, layout, choices} = JSON.parse(box.querySelector(":scope > script").textContent);
    for (const pick of box.querySelectorAll("select[data-axis]")) {
      const axis = pick.dataset.axis, chosen = choices[axis][pick.selectedIndex];
      data.forEach((trace, place) => { trace[axis] = chosen.values[place]; });
      layout[axis + "axis"].title.text = chosen.name;
    }
    const widest = parseFloat(getComputedStyle(canvas).maxWidth) || Infinity;
    const room = Math.min(widest, width || Math.floor(canvas.getBoundingClientRect().width));
    const font = {...layout.font, size: room < NARROW ? 12 : 13};
    // A legend of many lines would take its room from the plot: give it room of its own.
    const most = layout.showlegend ? LEGEND_LINE * data.length : 0;
    const sized = {...layout, font, width: room, height: layout.height + most};
    Plotly.react(canvas, data, sized, {displayModeBar: false});
    const legend = canvas.querySelector(".legend .bg");
    const needed = legend ? Math.ceil(legend.getBoundingClientRect().height) : 0;
    Plotly.relayout(canvas, {height: layout.height + needed});
  }

  function all(width) {
    for (const box of boxes) {
      try {
        draw(box, width && box.closest(".side") ? width / 2 - 12 : width);
      } catch (error) {  // a plot that cannot be drawn leaves its numbers
        console.error(error);
        box.querySelectorAll("details").forEach((d) => { d.open = true; });
      }
    }
  }
  all();
  for (const box of boxes) {
    for (const pick of box.querySelectorAll("select[data-axis]")) {
      pick.addEventListener("change", () => draw(box));
    }
  }

  let last = window.innerWidth, waiting = 0;
  window.addEventListener("resize", () => {
    if (window.innerWidth === last) return;  // a phone's bars come and go while one scrolls
    last = window.innerWidth;
    clearTimeout(waiting);
    waiting = setTimeout(all, 100);
  });

  // On paper everything is shown, in the width of a sheet.
  const closed = new Set();
  window.addEventListener("beforeprint", () => {
    document.querySelectorAll("details:not([open])").forEach((d) => { closed.add(d); d.open = true; });
    all(PRINTED);
  });
  window.addEventListener("afterprint", () => {
    closed.forEach((d) => { d.open = false; });
    closed.clear();
    all();
  });
})();
