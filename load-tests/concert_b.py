"""Scenario B: ride requests and fare estimates, 3 : 1, with pauses of 0.1 to 0.5 seconds.

    locust -f load-tests/concert_b.py --headless --host http://127.0.0.1:8000 \\
        --users 2000 --spawn-rate 100 --run-time 3m --csv concert-b
"""

from locust import between
from riders import Rider


class ConcertGoer(Rider):
    wait_time = between(0.1, 0.5)
    tasks = {Rider.request_ride: 3, Rider.estimate_fare: 1}
