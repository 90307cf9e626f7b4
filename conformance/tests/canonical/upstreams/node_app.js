// Reports what a Node application reads from a request. Prints its port.
"use strict";

const http = require("node:http");
const querystring = require("node:querystring");

function decode(text) {
  try {
    return decodeURIComponent(text);
  } catch {
    return text;
  }
}

// As the package `cookie` does: the first of a name counts, quotes are removed, and values are percent-decoded.
function cookie(header, wanted) {
  for (const pair of (header ?? "").split(";")) {
    const equals = pair.indexOf("=");
    if (equals < 0 || pair.slice(0, equals).trim() !== wanted) continue;
    const value = pair.slice(equals + 1).trim();
    return decode(/^".*"$/.test(value) && value.length > 1 ? value.slice(1, -1) : value);
  }
  return null;
}

// The subject of a bearer token, as an application reads it that has verified the token elsewhere.
function user(header) {
  const parts = (header ?? "").trim().split(/\s+/);
  const token = parts.length === 2 && parts[0].toLowerCase() === "bearer" ? parts[1].split(".") : [];
  if (token.length !== 3) return null;
  try {
    return JSON.parse(Buffer.from(token[1], "base64url").toString()).sub ?? null;
  } catch {
    return null;
  }
}

const server = http.createServer((request, response) => {
  const chunks = [];
  request.on("data", (chunk) => chunks.push(chunk));
  request.on("end", () => {
    const { headers } = request;
    const [path, query] = request.url.split(/\?(.*)/s);
    const url = new URL(request.url.startsWith("/") ? `http://x${request.url}` : "http://x/");
    const accounts = [url.searchParams.getAll("account"), querystring.parse(query ?? "").account ?? []];
    response.setHeader("content-type", "application/json");
    response.end(
      JSON.stringify({
        method: request.method,
        paths: [decode(path), decode(url.pathname), headers["x-original-url"], headers["x-rewrite-url"]],
        keys: [headers["x-api-key"], headers["x_api_key"]],
        accounts: accounts.flat(),
        sessions: [cookie(headers.cookie, "sid")],
        users: [user(headers.authorization)],
        hosts: [headers.host, headers["x-forwarded-host"]],
        forwarded_for: headers["x-forwarded-for"],
        body: Buffer.concat(chunks).toString("latin1"),
      }),
    );
  });
});

server.listen(0, "127.0.0.1", () => console.log(`port ${server.address().port}`));
