//! Growing and shrinking a vector in small steps, so that it wastes little and no step takes long.

/// Room that is kept even by an empty vector, so that single records coming and going do not allocate.
const KEPT: usize = 8;

/// Appends `item`, growing the vector by a quarter when it is full.
pub(super) fn push<T>(vec: &mut Vec<T>, item: T) {
    if vec.len() == vec.capacity() {
        vec.reserve_exact((vec.len() / 4).max(KEPT));
    }
    vec.push(item);
}

/// Gives room back when less than half of the vector is in use.
pub(super) fn shrink<T>(vec: &mut Vec<T>) {
    if vec.capacity() > 2 * KEPT && vec.len() < vec.capacity() / 2 {
        vec.shrink_to((vec.len() + vec.len() / 4).max(KEPT));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn at_most_a_fifth_of_a_growing_vector_is_empty() {
        let mut vec = Vec::new();
        for item in 0..10_000_u32 {
            push(&mut vec, item);
            assert!(vec.capacity() <= vec.len() + (vec.len() / 4).max(KEPT));
        }
    }

    #[test]
    fn an_emptied_vector_gives_its_room_back() {
        let mut vec: Vec<u32> = (0..10_000).collect();
        while vec.pop().is_some() {
            shrink(&mut vec);
            assert!(vec.capacity() <= (2 * vec.len() + 2).max(2 * KEPT));
        }
    }
}
