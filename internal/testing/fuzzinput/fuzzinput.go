// Package fuzzinput hides how fuzz targets turn bytes into values: any bytes make a value, and
// few bytes make a small one, so that the fuzzer can shorten what it finds.
package fuzzinput

import "math/rand/v2"

// Source yields the bytes of an input one after another, and zeros after the last.
type Source struct{ rest []byte }

// From makes a source of an input.
func From(input []byte) *Source { return &Source{rest: input} }

// Seeds are the empty input and others of up to the given length, the same in each run: a plain test walks them.
func Seeds(count, length int) [][]byte {
	rng := rand.New(rand.NewPCG(uint64(count), uint64(length))) //nolint:gosec // not a secret
	seeds := [][]byte{{}}
	for range count - 1 {
		seed := make([]byte, 1+rng.IntN(length))
		for i := range seed {
			seed[i] = byte(rng.IntN(256))
		}
		seeds = append(seeds, seed)
	}
	return seeds
}

// Byte is the next byte.
func (s *Source) Byte() byte {
	if len(s.rest) == 0 {
		return 0
	}
	b := s.rest[0]
	s.rest = s.rest[1:]
	return b
}

// Below is a number from 0 to n-1, for n up to 256.
func (s *Source) Below(n int) int { return int(s.Byte()) % n }

// Bool is true for an odd byte.
func (s *Source) Bool() bool { return s.Byte()&1 == 1 }

// Pick is one of the choices; the first if there are no bytes left.
func Pick[T any](s *Source, choices ...T) T { return choices[s.Below(len(choices))] }
