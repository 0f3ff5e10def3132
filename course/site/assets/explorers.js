// Draws the explorers of a page with the site's own copy of Vega, each when it comes near the reader's view.
//
// An explorer is written by course.views as
//   <div class="explorer" id="explorer-NAME">
//     <script type="application/json" class="explorer-spec">a Vega-Lite specification</script>
//     a still picture and its sentence, which stay where this script cannot run
//   </div>
// Once drawn it has the attribute data-drawn, and its Vega view as the property `view`.
(function () {
  "use strict";

  const assets = document.currentScript.src.replace(/[^/]*$/, "");
  let loading = null;

  function loadVega() {
    loading ??= new Promise(function (resolve, reject) {
      const script = document.createElement("script");
      script.src = assets + "offline/vega.js";
      script.onload = resolve;
      script.onerror = () => reject(new Error("could not load " + script.src));
      document.head.append(script);
    });
    return loading;
  }

  async function draw(explorer) {
    const spec = JSON.parse(explorer.querySelector(".explorer-spec").textContent);
    await loadVega();
    // Errors only: the bundle notes at each chart that its Vega is newer than Vega-Lite's.
    const drawn = await window.vegaEmbed(explorer, spec, { renderer: "svg", actions: false, logLevel: 1 });
    explorer.view = drawn.view;
    explorer.dataset.drawn = "yes";
    resized.observe(explorer);
  }

  // Vega measures its container when the window is resized. The theme moves its sidebars after that, and when a reader
  // folds them; so a change of an explorer's own width counts as well.
  const resized = new ResizeObserver(function (entries) {
    for (const { target, contentRect } of entries) {
      if (target.dataset.width && target.dataset.width !== String(contentRect.width)) {
        window.dispatchEvent(new Event("resize"));
      }
      target.dataset.width = contentRect.width;
    }
  });

  const near = new IntersectionObserver(
    function (entries) {
      for (const entry of entries) {
        if (entry.isIntersecting) {
          near.unobserve(entry.target);
          draw(entry.target);
        }
      }
    },
    { rootMargin: "800px" },
  );
  document.querySelectorAll("div.explorer").forEach((explorer) => near.observe(explorer));
})();
