//! Several engines that act as one, over one origin.

mod fake;
mod hot;
mod reads;
mod views;
mod writes;
