// Requests to the service: token, problems, and server-sent events over fetch (EventSource cannot
// send a token).

const login = document.getElementById("login");
const field = document.getElementById("token");
let asking = null;

function headers(extra = {}) {
  const token = sessionStorage.getItem("hdgemm-token");
  return token ? { ...extra, Authorization: `Bearer ${token}` } : extra;
}

function askForToken(refused) {
  asking ??= new Promise((resolve) => {
    login.addEventListener("close", () => {
      // A header takes no other characters; the server refuses what no token has.
      sessionStorage.setItem("hdgemm-token", field.value.trim().replace(/[^!-~]/g, "?"));
      field.value = "";
      asking = null;
      resolve();
    }, { once: true });
    login.querySelector("h2").textContent = refused ? "The token is not valid" : "This server asks for a token";
    login.showModal();
  });
  return asking;
}

// Browsers have words of their own for a server that is gone, such as "Failed to fetch".
const GONE = "The service does not answer: is hdgemm serve running?";

async function answered(address, options) {
  try {
    return await fetch(address, options);
  } catch (error) {
    if (options.signal?.aborted) throw error;
    throw Object.assign(new Error(GONE), { gone: true });
  }
}

export async function request(path, options = {}) {
  // Relative, so that a proxy may serve the page below a path.
  const sent = headers(options.headers);
  const answer = await answered(new URL(`.${path}`, document.baseURI), { ...options, headers: sent });
  if (answer.status === 401) {
    await askForToken("Authorization" in sent);
    return request(path, options);
  }
  if (!answer.ok) {
    let problem = {};
    try { problem = await answer.json(); } catch { /* not a problem document */ }
    const error = new Error(problem.detail || `${answer.status} ${answer.statusText}`);
    error.problem = problem;
    error.status = answer.status;
    throw error;
  }
  return answer;
}

export async function get(path) {
  return (await request(path)).json();
}

export async function post(path, body, signal) {
  const options = { method: "POST", signal };
  if (body !== undefined) {
    options.headers = { "Content-Type": "application/json" };
    options.body = JSON.stringify(body);
  }
  return (await request(path, options)).json();
}

export async function remove(path) {
  await request(path, { method: "DELETE" });
}

export async function blobUrl(path) {
  return URL.createObjectURL(await (await request(path)).blob());
}

// Saves what a path answers as a file. Without a token the browser streams it to the disk itself.
export async function save(path, name) {
  const direct = sessionStorage.getItem("hdgemm-token") === null;
  const href = direct ? new URL(`.${path}`, document.baseURI).href : await blobUrl(path);
  const link = document.createElement("a");
  Object.assign(link, { href, download: name });
  link.click();
  if (!direct) setTimeout(() => URL.revokeObjectURL(href), 60_000);
}

// Calls onEvent({id, kind, data}) for each event; resumes where it broke off, and tells of that; ends with the job.
export async function follow(path, signal, onEvent, tell) {
  let last = "0";
  let broken = false;
  while (!signal.aborted) {
    try {
      const answer = await request(path, { signal, headers: { "Last-Event-ID": last } });
      if (broken) tell("");
      broken = false;
      const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
      let text = "";
      for (;;) {
        const { value, done } = await reader.read();
        if (done) break;
        text += value;
        const blocks = text.split("\n\n");
        text = blocks.pop();
        for (const block of blocks) {
          const lines = Object.fromEntries(block.split("\n").map((line) => {
            const at = line.indexOf(": ");
            return [line.slice(0, at), line.slice(at + 2)];
          }));
          if (lines.event === "end") return;
          if (lines.id) {
            last = lines.id;
            onEvent({ id: last, kind: lines.event, data: JSON.parse(lines.data) });
          }
        }
      }
    } catch (error) {
      if (signal.aborted) return;
      if (error.problem) throw error;
      broken = true;
      tell(GONE);
    }
    await new Promise((resolve) => setTimeout(resolve, 1000));
  }
}
