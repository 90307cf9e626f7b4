"""Scenario A: ride requests, fare estimates and drivers nearby, 5 : 2 : 1, with pauses of 0.1 to 0.3 seconds.

    locust -f load-tests/concert_a.py --headless --host http://127.0.0.1:8000 \\
        --users 2000 --spawn-rate 200 --run-time 3m --csv concert-a
"""

from locust import between
from riders import Rider


class ConcertGoer(Rider):
    wait_time = between(0.1, 0.3)
    tasks = {Rider.request_ride: 5, Rider.estimate_fare: 2, Rider.nearby_drivers: 1}
