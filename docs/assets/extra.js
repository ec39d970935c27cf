// Tables that are wider than the page can be scrolled with the keyboard, too.
window.addEventListener("load", () => {
  for (const wide of document.querySelectorAll(".md-typeset__scrollwrap")) {
    if (wide.scrollWidth > wide.clientWidth) wide.tabIndex = 0;
  }
});
