//! A vector in chunks: growing it moves nothing, and shrinking it gives memory back at once.

use std::ops::{Index, IndexMut};

/// Items in a chunk: few, so that a shard with one record takes little.
const CHUNK: usize = 32;

/// Items without gaps, found by position.
#[derive(Debug)]
pub(super) struct Chunks<T> {
    /// All full but the last one with items, and at most one without items behind it.
    chunks: Vec<Vec<T>>,
    len: usize,
}

impl<T> Chunks<T> {
    pub(super) fn len(&self) -> usize {
        self.len
    }

    pub(super) fn push(&mut self, item: T) {
        if self.len == self.chunks.len() * CHUNK {
            self.chunks.push(Vec::with_capacity(CHUNK));
        }
        self.chunks[self.len / CHUNK].push(item);
        self.len += 1;
    }

    /// Removes the item at `position`; the last item takes its place.
    ///
    /// # Panics
    ///
    /// Panics if there is no item at `position`.
    pub(super) fn swap_remove(&mut self, position: usize) -> T {
        self.len -= 1;
        let last = self.chunks[self.len / CHUNK].pop().expect("the chunk of the last item is not empty");
        let removed = if position == self.len { last } else { std::mem::replace(&mut self[position], last) };
        // One empty chunk is kept, so that single items coming and going do not allocate.
        if self.chunks.len() > self.len.div_ceil(CHUNK) + 1 {
            self.chunks.pop();
            self.chunks.shrink_to(2 * self.chunks.len());
        }
        removed
    }
}

impl<T> Default for Chunks<T> {
    fn default() -> Self {
        Self { chunks: Vec::new(), len: 0 }
    }
}

impl<T> Index<usize> for Chunks<T> {
    type Output = T;

    fn index(&self, position: usize) -> &T {
        &self.chunks[position / CHUNK][position % CHUNK]
    }
}

impl<T> IndexMut<usize> for Chunks<T> {
    fn index_mut(&mut self, position: usize) -> &mut T {
        &mut self.chunks[position / CHUNK][position % CHUNK]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn items_are_where_a_vector_would_have_them() {
        let (mut chunks, mut vec) = (Chunks::default(), Vec::new());
        let mut seed = 3_usize;
        for item in 0..10_000 {
            seed = seed.wrapping_mul(1_103_515_245).wrapping_add(12_345) % (1 << 31);
            // Grows in the first half, and shrinks in the second.
            if seed / 7 % 10 < if item < 5000 { 3 } else { 7 } && !vec.is_empty() {
                let position = seed / 77 % vec.len();
                assert_eq!(chunks.swap_remove(position), vec.swap_remove(position));
            } else {
                chunks.push(item);
                vec.push(item);
            }
            assert_eq!(chunks.len(), vec.len());
            assert!(chunks.chunks.len() <= vec.len().div_ceil(CHUNK) + 1);
            assert!((0..vec.len()).all(|position| chunks[position] == vec[position]));
        }
    }
}
