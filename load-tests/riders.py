"""Riders of the concert, for Locust: what the two scenarios have in common.

A 429 is an answer, not a failure: it is counted under a name of its own, so that the times of rides and the times of refusals do not
mix. Everything else but 200 is a failure.
"""

import uuid

from locust import FastHttpUser

RIDE = {"pickup": [52.52, 13.40], "dropoff": [52.50, 13.45]}


class Rider(FastHttpUser):
    """One person with one phone, who waits for an answer and then taps again."""

    abstract = True
    connection_timeout = 30.0
    network_timeout = 30.0

    def on_start(self):
        self.headers = {"x-user-id": str(uuid.uuid4())}

    def ask(self, method, path, **more):
        with self.client.request(
            method, path, headers=self.headers, catch_response=True, **more
        ) as response:
            if response.status_code == 429:
                response.request_meta["name"] = f"{path} (429)"
                response.success()

    def request_ride(self):
        self.ask("POST", "/api/rides/request", json=RIDE)

    def estimate_fare(self):
        self.ask("POST", "/api/fares/estimate", json=RIDE)

    def nearby_drivers(self):
        self.ask("GET", "/api/drivers/nearby")

