// Loads the index of the search when a reader turns to a search field: it is larger than most pages.
(function () {
  "use strict";

  const root = document.currentScript.src.replace(/_static\/[^/]*$/, "");
  document.addEventListener("focusin", function load(event) {
    if (!event.target.matches("input[type=search], input[name=q]")) return;
    document.removeEventListener("focusin", load);
    Search.loadIndex(root + "searchindex.js"); // what was typed until it is there waits for it
  });
})();
