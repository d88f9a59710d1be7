package main

import (
	"encoding/json"
	"math"
	"math/bits"
	"slices"
	"time"
)

// A histogram counts durations in buckets. Durations in the same bucket differ by less than 1/64.
type histogram struct {
	counts []int64
	total  int64
}

const stepBits = 6

func bucket(d time.Duration) int {
	n := uint64(max(d, 0))
	exp := bits.Len64(n >> (stepBits + 1))
	return exp<<stepBits + int(n>>exp)
}

// middle returns the duration in the middle of a bucket.
func middle(bucket int) time.Duration {
	exp := max(bucket>>stepBits-1, 0)
	low := uint64(bucket-exp<<stepBits) << exp
	return time.Duration(low + (1<<exp)/2)
}

func (h *histogram) add(d time.Duration) { h.addTo(bucket(d), 1) }

func (h *histogram) addTo(bucket int, n int64) {
	if more := bucket + 1 - len(h.counts); more > 0 {
		h.counts = append(h.counts, make([]int64, more)...)
	}
	h.counts[bucket] += n
	h.total += n
}

func (h *histogram) merge(other histogram) {
	for b, n := range other.counts {
		if n > 0 {
			h.addTo(b, n)
		}
	}
}

// quantile returns the q-quantile of the durations: a fraction q of them are at most that long. It
// returns 0 if there are no durations.
func (h *histogram) quantile(q float64) time.Duration {
	left := int64(math.Ceil(q * float64(h.total)))
	for b, n := range h.counts {
		if left -= n; n > 0 && left <= 0 {
			return middle(b)
		}
	}
	return 0
}

// MarshalJSON writes the buckets that aren't empty.
func (h histogram) MarshalJSON() ([]byte, error) {
	counts := make(map[int]int64)
	for b, n := range h.counts {
		if n > 0 {
			counts[b] = n
		}
	}
	return json.Marshal(counts)
}

// UnmarshalJSON reads what MarshalJSON wrote.
func (h *histogram) UnmarshalJSON(data []byte) error {
	var counts map[int]int64
	if err := json.Unmarshal(data, &counts); err != nil {
		return err
	}
	*h = histogram{}
	for b, n := range counts {
		h.addTo(b, n)
	}
	return nil
}

// jain returns Jain's fairness index. It is 1 if all shares are equal, and 1/n if one of n parties
// has everything.
func jain(shares []int64) float64 {
	var sum, squares float64
	for _, s := range shares {
		sum += float64(s)
		squares += float64(s) * float64(s)
	}
	if squares == 0 {
		return math.NaN()
	}
	return sum * sum / (float64(len(shares)) * squares)
}

// median returns the median of the figures that aren't NaN.
func median(figures []float64) float64 {
	figures = slices.DeleteFunc(slices.Clone(figures), math.IsNaN)
	if len(figures) == 0 {
		return math.NaN()
	}
	slices.Sort(figures)
	mid := len(figures) / 2
	if len(figures)%2 == 0 {
		return (figures[mid-1] + figures[mid]) / 2
	}
	return figures[mid]
}

func total(counts []int64) (sum int64) {
	for _, n := range counts {
		sum += n
	}
	return sum
}
