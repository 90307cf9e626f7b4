"""Runs one export: reserves a slot and units, works, and commits what it used, or releases everything.

    python3 worker.py URL TENANT JOB --units 250 [--used 240] [--seconds 2] [--fail]

JOB is the idempotency key: a worker that is started again with the same job counts once. Exit code: 0 if the export was charged, 1 if it failed
and was released, 2 if it was denied, 3 if it took longer than its reservation lasts.
"""

import argparse
import json
import sys
import time
import urllib.error
import urllib.request

RETRY_SECONDS = 0.2


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("url")
    parser.add_argument("tenant")
    parser.add_argument("job")
    parser.add_argument("--units", type=int, required=True, help="units that the export is expected to use")
    parser.add_argument("--used", type=int, help="units that it uses; as expected if omitted")
    parser.add_argument("--seconds", type=float, default=0, help="how long it works")
    parser.add_argument("--fail", action="store_true", help="fails at the end of its work")
    options = parser.parse_args()

    started = time.monotonic()
    request = {"method": "POST", "path": "/exports", "headers": {"x-tenant-id": options.tenant}}
    request |= {"cost": options.units, "idempotency_key": options.job}
    status, answer = call(options.url, "reserve", request)
    if status != 200 or not answer["allowed"]:
        why = answer.get("error") or f"denied by {answer['rule']}"
        print(f"{options.job}: {why}", flush=True)
        return 2
    reservation = answer["reservation"]
    print(f"{options.job}: reserved {options.units} units", flush=True)
    # After that, others may hold the slot and the units.
    deadline = started + reservation["expires_in_ms"] / 1000

    succeeded = export(options, deadline)
    used = options.units if options.used is None else options.used
    if not succeeded:
        call(options.url, "release", {"id": reservation["id"]})
        print(f"{options.job}: failed, released", flush=True)
        return 1
    status, answer = call(options.url, "commit", {"id": reservation["id"], "cost": used})
    if status == 404:
        print(f"{options.job}: took too long, nothing was charged", flush=True)
        return 3
    print(f"{options.job}: committed {used} units", flush=True)
    return 0


def export(options, deadline):
    """The work itself. It must end before its reservation does."""
    end = time.monotonic() + options.seconds
    while time.monotonic() < end:
        if time.monotonic() > deadline:
            return False
        time.sleep(0.05)
    return not options.fail


def call(url, step, body):
    """Calls the server until it answers: every step with an idempotency key can be repeated and counts once."""
    data = json.dumps(body).encode()
    while True:
        request = urllib.request.Request(f"{url}/v1/quotas/{step}", data, {"content-type": "application/json"})
        try:
            with urllib.request.urlopen(request, timeout=5) as response:
                return response.status, json.load(response)
        except urllib.error.HTTPError as error:
            # 503: the store or the ledger fails, or the quotas are being rebuilt. Whatever the server took, it has given back.
            if error.code != 503:
                return error.code, json.load(error)
        except (urllib.error.URLError, ConnectionError, TimeoutError, ValueError):
            pass  # no answer: it may have counted or not, and the repeat finds out
        time.sleep(RETRY_SECONDS)


if __name__ == "__main__":
    sys.exit(main())
