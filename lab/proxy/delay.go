package proxy

import (
	"io"
	"sync"
	"time"
)

// maxChunks bounds how much of one stream may be in flight.
const maxChunks = 1 << 13

// delay passes a stream on as it comes, each piece by some time later, in its order.
func delay(from io.ReadCloser, by func() time.Duration) io.ReadCloser {
	d := &delayed{from: from, by: by, chunks: make(chan chunk, maxChunks), closed: make(chan struct{})}
	go d.pump()
	return d
}

type chunk struct {
	bytes []byte
	at    time.Time
	err   error
}

type delayed struct {
	from   io.ReadCloser
	by     func() time.Duration
	chunks chan chunk
	rest   chunk // of the chunk that is being read

	once   sync.Once
	closed chan struct{}
}

func (d *delayed) pump() {
	defer close(d.chunks)
	for {
		buffer := make([]byte, 16<<10)
		n, err := d.from.Read(buffer)
		select {
		case d.chunks <- chunk{bytes: buffer[:n], at: time.Now(), err: err}:
		case <-d.closed:
			return
		}
		if err != nil {
			return
		}
	}
}

// Read waits until the next piece is old enough.
func (d *delayed) Read(p []byte) (int, error) {
	for len(d.rest.bytes) == 0 {
		if d.rest.err != nil {
			return 0, d.rest.err
		}
		select {
		case <-d.closed:
			return 0, io.ErrClosedPipe
		case next, ok := <-d.chunks:
			if !ok {
				return 0, io.ErrClosedPipe
			}
			if err := d.ripen(next.at); err != nil {
				return 0, err
			}
			d.rest = next
		}
	}
	n := copy(p, d.rest.bytes)
	d.rest.bytes = d.rest.bytes[n:]
	return n, nil
}

func (d *delayed) ripen(at time.Time) error {
	wait := time.Until(at.Add(d.by()))
	if wait <= 0 {
		return nil
	}
	timer := time.NewTimer(wait)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-d.closed:
		return io.ErrClosedPipe
	}
}

func (d *delayed) Close() error {
	d.once.Do(func() { close(d.closed) })
	return d.from.Close()
}
