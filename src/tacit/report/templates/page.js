"use strict";
// Draws every plot of the page. Colours of text and grid come from the style sheet, so that plots
// follow light, dark and print without being drawn again.
(() => {
  const NARROW = 520, PRINTED = 660, LEGEND_LINE = 19;
  const boxes = [...document.querySelectorAll("figure.plot")];

  const roomOf = (canvas) => Math.floor(canvas.getBoundingClientRect().width);

  function draw(box, width) {
    const canvas = box.querySelector(".canvas");
    const {data, layout, choices} = JSON.parse(box.querySelector(":scope > script").textContent);
    for (const pick of box.querySelectorAll("select[data-axis]")) {
      const axis = pick.dataset.axis, chosen = choices[axis][pick.selectedIndex];
      data.forEach((trace, place) => { trace[axis] = chosen.values[place]; });
      layout[axis + "axis"].title.text = chosen.name;
    }
    const widest = parseFloat(getComputedStyle(canvas).maxWidth) || Infinity;
    const room = Math.min(widest, width || roomOf(canvas));
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

  // A plot is drawn again when the room it has on the screen changes, whatever the reason.
  let waiting = 0, printing = false;
  const fit = () => {
    if (printing) return;
    for (const box of boxes) {
      const canvas = box.querySelector(".canvas"), drawn = canvas.querySelector(".main-svg");
      const room = roomOf(canvas);
      if (drawn && room && drawn.clientWidth !== room) draw(box);
    }
  };
  const soon = () => {
    clearTimeout(waiting);
    waiting = setTimeout(fit, 100);
  };
  const watch = new ResizeObserver(soon);
  boxes.forEach((box) => watch.observe(box.querySelector(".canvas")));
  window.addEventListener("resize", soon);

  // On paper everything is shown, in the width of a sheet.
  const closed = new Set();
  window.addEventListener("beforeprint", () => {
    printing = true;
    document.querySelectorAll("details:not([open])").forEach((d) => { closed.add(d); d.open = true; });
    all(PRINTED);
  });
  window.addEventListener("afterprint", () => {
    printing = false;
    closed.forEach((d) => { d.open = false; });
    closed.clear();
    all();
  });
})();
