//! `Endpoint`: the HTTP endpoints of the ride-hailing service.

use http::Method;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Endpoint {
    Ride,
    Fare,
    Nearby,
    Location,
    History,
    Stats,
}

impl Endpoint {
    pub(crate) const ALL: [Self; 6] =
        [Self::Ride, Self::Fare, Self::Nearby, Self::History, Self::Stats, Self::Location];

    pub(crate) const fn method(self) -> Method {
        match self {
            Self::Ride | Self::Fare | Self::Location => Method::POST,
            Self::Nearby | Self::History | Self::Stats => Method::GET,
        }
    }

    pub(crate) const fn path(self) -> &'static str {
        match self {
            Self::Ride => "/api/rides/request",
            Self::Fare => "/api/fares/estimate",
            Self::Nearby => "/api/drivers/nearby",
            Self::Location => "/api/drivers/location",
            Self::History => "/api/trips/history",
            Self::Stats => "/api/admin/zones/stats",
        }
    }

    /// The path without `/api/`.
    pub(crate) fn name(self) -> &'static str {
        self.path().trim_start_matches("/api/")
    }

    pub(crate) fn from_path(path: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|endpoint| endpoint.path() == path)
    }
}
