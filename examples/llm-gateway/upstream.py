"""A stand-in for the API of a language model: OpenAI's chat completions and responses, and Anthropic's messages. It answers with as many
words as `max_tokens`, `max_completion_tokens` or `max_output_tokens` asks for, 20 without them, and every word is a token.

    python3 upstream.py [PORT [SECONDS BETWEEN TWO WORDS OF A STREAM]]
"""

import json
import sys
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

MAX_WORDS = 1000
DELAY = float(sys.argv[2]) if len(sys.argv) > 2 else 0


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_POST(self):
        body = self.rfile.read(int(self.headers.get("content-length", 0)))
        try:
            request = json.loads(body)
            asked = [request[name] for name in ("max_tokens", "max_completion_tokens", "max_output_tokens") if name in request]
            words = min(int(asked[0]) if asked else 20, MAX_WORDS)
        except (ValueError, TypeError, AttributeError):
            return self.answer(400, {"error": {"message": "The body is not a request."}})
        prompt = len(body.split())
        apis = {"/v1/chat/completions": self.chat, "/v1/responses": self.respond, "/v1/messages": self.messages}
        if self.path not in apis:
            return self.answer(404, {"error": {"message": "There is no such API."}})
        try:
            apis[self.path](request, prompt, words)
        except ConnectionError:
            self.close_connection = True  # the client has hung up

    def chat(self, request, prompt, words):
        usage = {"prompt_tokens": prompt, "completion_tokens": words, "total_tokens": prompt + words}
        if not request.get("stream"):
            message = {"role": "assistant", "content": "word " * words}
            return self.answer(200, {"object": "chat.completion", "choices": [{"index": 0, "message": message}], "usage": usage})
        self.begin_stream()
        for _ in range(words):
            self.send_event({"object": "chat.completion.chunk", "choices": [{"index": 0, "delta": {"content": "word "}}]})
        if (request.get("stream_options") or {}).get("include_usage"):
            self.send_event({"object": "chat.completion.chunk", "choices": [], "usage": usage})
        self.send_chunk(b"data: [DONE]\n\n")
        self.send_chunk(b"")

    def respond(self, request, prompt, words):
        content = [{"type": "output_text", "text": "word " * words}]
        usage = {"input_tokens": prompt, "output_tokens": words, "total_tokens": prompt + words}
        response = {"object": "response", "output": [{"type": "message", "content": content}], "usage": usage}
        if not request.get("stream"):
            return self.answer(200, response)
        self.begin_stream()
        self.send_event({"type": "response.created", "response": {"object": "response"}}, "response.created")
        for _ in range(words):
            self.send_event({"type": "response.output_text.delta", "delta": "word "}, "response.output_text.delta")
        # A real API repeats the output here, too.
        completed = {"type": "response.completed", "response": {"object": "response", "usage": usage}}
        self.send_event(completed, "response.completed")
        self.send_chunk(b"")

    def messages(self, request, prompt, words):
        if not request.get("stream"):
            content = [{"type": "text", "text": "word " * words}]
            usage = {"input_tokens": prompt, "output_tokens": words}
            return self.answer(200, {"type": "message", "content": content, "usage": usage})
        self.begin_stream()
        self.send_event({"type": "message_start", "message": {"usage": {"input_tokens": prompt, "output_tokens": 1}}}, "message_start")
        for _ in range(words):
            delta = {"type": "text_delta", "text": "word "}
            self.send_event({"type": "content_block_delta", "index": 0, "delta": delta}, "content_block_delta")
        self.send_event({"type": "message_delta", "delta": {}, "usage": {"output_tokens": words}}, "message_delta")
        self.send_event({"type": "message_stop"}, "message_stop")
        self.send_chunk(b"")

    def answer(self, status, value):
        body = json.dumps(value).encode()
        self.send_response(status)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def begin_stream(self):
        self.send_response(200)
        self.send_header("content-type", "text/event-stream")
        self.send_header("transfer-encoding", "chunked")
        self.end_headers()

    def send_event(self, value, name=None):
        time.sleep(DELAY)
        line = f"event: {name}\n" if name else ""
        self.send_chunk(f"{line}data: {json.dumps(value)}\n\n".encode())

    def send_chunk(self, data):
        self.wfile.write(b"%x\r\n%s\r\n" % (len(data), data))
        self.wfile.flush()

    def log_message(self, *_):
        pass


if __name__ == "__main__":
    server = ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1]) if len(sys.argv) > 1 else 3000), Handler)
    print(f"http://127.0.0.1:{server.server_port}", flush=True)
    server.serve_forever()
