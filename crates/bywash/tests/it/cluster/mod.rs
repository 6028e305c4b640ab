//! Several engines that act as one, over one origin.

mod fake;
mod reads;
mod views;
mod writes;
