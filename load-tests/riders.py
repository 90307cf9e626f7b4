"""The Locust user that both scenarios share.

A 429 is not a failure. It is counted under a separate name, so that the times of served requests and of rejections do not mix. Every other
status but 200 is a failure.
"""

import uuid

from locust import FastHttpUser

RIDE = {"pickup": [52.52, 13.40], "dropoff": [52.50, 13.45]}


class Rider(FastHttpUser):
    """One person with one phone, who waits for each response before the next request."""

    abstract = True
    connection_timeout = 30.0
    network_timeout = 30.0

    def on_start(self):
        self.headers = {"x-user-id": str(uuid.uuid4())}

    def send(self, method, path, **more):
        with self.client.request(
            method, path, headers=self.headers, catch_response=True, **more
        ) as response:
            if response.status_code == 429:
                response.request_meta["name"] = f"{path} (429)"
                response.success()

    def request_ride(self):
        self.send("POST", "/api/rides/request", json=RIDE)

    def estimate_fare(self):
        self.send("POST", "/api/fares/estimate", json=RIDE)

    def nearby_drivers(self):
        self.send("GET", "/api/drivers/nearby")

