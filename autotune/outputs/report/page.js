for (const button of document.querySelectorAll(".copy")) button.addEventListener("click", async () => {
  const code = button.nextElementSibling;
  getSelection().selectAllChildren(code);
  let copied = true;
  try { await navigator.clipboard.writeText(code.textContent.trimEnd()); }
  catch { copied = document.execCommand("copy"); }
  button.textContent = copied ? "Copied" : "Selected: copy it by hand";
});
