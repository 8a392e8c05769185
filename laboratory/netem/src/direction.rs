//! Direction of bytes, as scenarios and captures have it.

/// Direction of a workload's bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Direction {
    /// Towards the client.
    #[default]
    Down,
    /// Direction from the client.
    Up,
}
