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

// The search's syntax excludes words after a hyphen: --host-memory would find nothing.
const post = Worker.prototype.postMessage;
Worker.prototype.postMessage = function (message, ...rest) {
  const query = typeof message?.data === "string" ? message.data.replace(/(^|\s)-+(?=\w)/g, "$1") : null;
  return post.call(this, query === null ? message : { ...message, data: query }, ...rest);
};
