"use strict";
// Which words of the source every word of the translation looked at, [number, percent]; and the other way round.
const looks = JSON.parse(document.getElementById("looks").textContent);
const back = new Map();
looks.forEach((row, target) => row.forEach(([source, share]) => {
  if (!back.has(source)) back.set(source, []);
  back.get(source).push([target, share]);
}));

let painted = [];

function clear() {
  for (const word of painted) {
    word.classList.remove("asked");
    word.style.removeProperty("--share");
    word.removeAttribute("title");
  }
  painted = [];
}

function show(word) {
  clear();
  const number = Number(word.id.slice(1));
  const [other, found] = word.id[0] === "t" ? ["s", looks[number]] : ["t", back.get(number) || []];
  word.classList.add("asked");
  painted.push(word);
  for (const [place, share] of found) {
    const seen = document.getElementById(other + place);
    seen.style.setProperty("--share", Math.sqrt(share / 100));
    seen.title = share + " %";
    painted.push(seen);
  }
}

const pairs = document.querySelector(".pairs");
for (const kind of ["mouseover", "click"]) {
  pairs.addEventListener(kind, (event) => {
    const word = event.target.closest("span");
    if (word) show(word);
  });
}
pairs.addEventListener("mouseleave", clear);
