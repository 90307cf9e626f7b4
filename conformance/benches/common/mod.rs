//! What the benchmarks share: how they are called, how they take turns, what they drive and read, and how they report.

#![allow(dead_code, unused_imports, reason = "each benchmark uses a part of it")]

mod options;
pub(crate) use options::Options;
mod turns;
pub(crate) use turns::{Contender, best_of};
pub(crate) mod cpu;
mod draw;
pub(crate) use draw::Draw;
mod takers;
pub(crate) use takers::{Takers, subjects};
mod pipe;
pub(crate) use pipe::Pipe;
mod site;
pub(crate) use site::{START, Site, Weighed};
mod rig;
pub(crate) use rig::Rig;
mod table;
pub(crate) use table::{Cell, Table, report};
