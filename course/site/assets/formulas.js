// Has MathJax set the formulas of a page a few at a time, those in view first, so that a phone answers meanwhile. Until its
// turn comes a formula is its TeX. `window.formulasSet` is a promise of all of them.
(function () {
  "use strict";

  const AT_ONCE_MS = 5;
  const idle = window.requestIdleCallback || ((then) => setTimeout(then, 1));

  // An observer, because to ask each formula for its place would lay out the whole page.
  function inOrder() {
    return new Promise(function (resolve) {
      const observer = new IntersectionObserver(function (entries) {
        observer.disconnect();
        entries.sort((a, b) => b.isIntersecting - a.isIntersecting);
        resolve(entries.map((entry) => entry.target));
      });
      document.querySelectorAll(".math").forEach((formula) => observer.observe(formula));
    });
  }

  async function set() {
    await MathJax.startup.promise;
    let since = performance.now();
    for (const formula of await inOrder()) {
      await MathJax.typesetPromise([formula]);
      if (performance.now() - since > AT_ONCE_MS) {
        await new Promise((then) => idle(then, { timeout: 500 }));
        since = performance.now();
      }
    }
  }

  window.formulasSet = set();
})();
