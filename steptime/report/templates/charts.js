(() => {
  "use strict";
  const specs = JSON.parse(document.getElementById("specs").textContent);

  // The buttons under a timeline: what dragging and Ctrl+wheel do, for touch and keyboard.
  const steer = (box, view) => {
    const whole = view.scale("x").domain();
    const move = {
      in: ([from, to]) => [from + (to - from) / 4, to - (to - from) / 4],
      out: ([from, to]) => [from - (to - from) / 2, to + (to - from) / 2],
      left: ([from, to]) => [from - (to - from) / 3, to - (to - from) / 3],
      right: ([from, to]) => [from + (to - from) / 3, to + (to - from) / 3],
      whole: () => whole,
    };
    for (const button of document.querySelectorAll(`button[data-chart="${box.id}"]`)) {
      button.addEventListener("click", () => {
        view.signal("zoom_s", move[button.dataset.move](view.scale("x").domain())).runAsync();
      });
    }
  };

  const draw = ([id, spec]) => {
    const box = document.getElementById(id);
    // `ast`: expressions are interpreted, because the page's policy forbids code made from text.
    const options = { mode: "vega-lite", actions: false, ast: true, renderer: "svg" };
    return vegaEmbed(box, spec, options).then((result) => {
      if (box.dataset.steered) steer(box, result.view);
      box.parentElement.classList.add("drawn");
    });
  };

  Promise.all(Object.entries(specs).map(draw)).then(() => {
    document.documentElement.dataset.charts = "drawn";
  });
})();
