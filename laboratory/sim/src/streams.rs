use hawser_netem::Random;

/// Named streams of random numbers from one seed.
///
/// Every consumer uses the stream of its own name, so that a further link or application changes no
/// draw of another. The names in use are `link:<name>` for links and the names that nodes choose.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Streams {
    seed: u64,
}

impl Streams {
    /// The streams under `seed`.
    #[must_use]
    pub const fn new(seed: u64) -> Self {
        Self { seed }
    }

    /// The generator of one stream.
    #[must_use]
    pub fn get(&self, name: &str) -> Random {
        Random::new(self.seed, name)
    }

    /// A seed for a machine that splits it again, such as a link.
    #[must_use]
    pub fn seed(&self, name: &str) -> u64 {
        self.get(name).next_u64()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_a_stream() {
        let streams = Streams::new(3);
        assert_eq!(streams.seed("link:a"), Streams::new(3).seed("link:a"));
        assert_ne!(streams.seed("link:a"), streams.seed("link:b"));
        assert_ne!(streams.seed("link:a"), Streams::new(4).seed("link:a"));
    }
}
