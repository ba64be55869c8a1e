// What the theme lacks: a name of each group of buttons, and a focus for what scrolls.
function complete() {
  document.querySelectorAll("nav.md-code__nav:not([aria-label])").forEach((nav) => {
    const block = [...document.querySelectorAll("nav.md-code__nav")].indexOf(nav) + 1;
    nav.setAttribute("aria-label", `Code ${block}`);
  });
  const scrolled = "pre > code, p:has(> img), .md-typeset__scrollwrap";
  document.querySelectorAll(`:is(${scrolled}):not([tabindex])`).forEach((block) => {
    block.setAttribute("tabindex", "0");
  });
}

new MutationObserver(complete).observe(document, {
  childList: true,
  subtree: true,
  attributes: true,
  attributeFilter: ["tabindex"],
});
complete();
