// Lays out the sections that course.css makes wait while a page loads, a few at a time when the browser is idle, so that a phone
// answers meanwhile. Then fetches the pictures that no reader has come near yet, so that a picture of the whole page has them, and
// lets the keyboard reach the blocks that scroll. `window.sectionsLaidOut` is a promise of all that, but for the pictures' arrival.
(function () {
  "use strict";

  const AT_ONCE_MS = 8;
  const RESIZED_MS = 300;
  const SCROLLERS = "pre, .cell_output, .cell_output > .output, .pst-scrollable-table-container, div.math";
  const page = document.documentElement;
  const idle = window.requestIdleCallback || ((then) => setTimeout(then, 1));
  const waiting = Array.from(document.querySelectorAll(".bd-article > section > section"));

  async function layOut() {
    if (document.readyState !== "complete") {
      await new Promise((then) => window.addEventListener("load", then, { once: true }));
    }
    while (page.classList.contains("loading") && waiting.length) {
      await new Promise((then) => idle(then, { timeout: 500 }));
      const since = performance.now();
      while (waiting.length && performance.now() - since < AT_ONCE_MS) {
        const section = waiting.shift();
        section.classList.add("laid-out");
        section.getBoundingClientRect(); // now, so that the time it takes is known
      }
    }
    page.classList.remove("loading");
    document.querySelectorAll("img[loading=lazy]").forEach((picture) => (picture.loading = "eager"));
    markScrollers();
  }

  // All are measured before one is marked: a mark makes the browser lay out the page again.
  function markScrollers() {
    const blocks = Array.from(document.querySelectorAll(SCROLLERS));
    const scrolling = blocks.map((block) => block.scrollWidth > block.clientWidth);
    blocks.forEach((block, i) => (scrolling[i] ? (block.tabIndex = 0) : block.removeAttribute("tabindex")));
  }

  // Where a link leads depends on the height of all that is above.
  window.addEventListener("hashchange", () => page.classList.remove("loading"));

  let resized = 0;
  window.addEventListener("resize", function () {
    clearTimeout(resized);
    resized = setTimeout(markScrollers, RESIZED_MS);
  });

  window.sectionsLaidOut = layOut();
})();
