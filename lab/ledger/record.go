package ledger

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"
)

// Record is one entry. On the medium it is one line:
//
//	<number> <time> <writer> <checksum>
type Record struct {
	// Number counts from 1 without gaps.
	Number int64 `json:"number"`
	// Time of writing by the writer's clock.
	Time time.Time `json:"time"`
	// Writer names who wrote it, such as "node-1/ledger-0".
	Writer string `json:"writer"`
	// Sum is SHA-256 over the previous record's sum and this record's content.
	Sum [sha256.Size]byte `json:"-"`
}

const timeFormat = "2006-01-02T15:04:05.000000000Z"

// MaxRecord is the length in bytes that no record exceeds, its newline included.
const MaxRecord = 512

// next is the record that follows r; the zero Record precedes the first.
func (r Record) next(writer string, now time.Time) Record {
	following := Record{Number: r.Number + 1, Time: now.UTC(), Writer: writer}
	following.Sum = following.sumAfter(r)
	return following
}

func (r Record) content() string {
	return fmt.Sprintf("%012d %s %s", r.Number, r.Time.Format(timeFormat), r.Writer)
}

func (r Record) sumAfter(previous Record) [sha256.Size]byte {
	hash := sha256.New()
	hash.Write(previous.Sum[:])
	hash.Write([]byte(r.content()))
	return [sha256.Size]byte(hash.Sum(nil))
}

func (r Record) encode() []byte {
	return []byte(r.content() + " " + hex.EncodeToString(r.Sum[:]) + "\n")
}

var errNotARecord = errors.New("not a record")

// parse reads one line, without its newline.
func parse(line []byte) (Record, error) {
	fields := bytes.Split(line, []byte(" "))
	if len(fields) != 4 {
		return Record{}, errNotARecord
	}
	number, err := strconv.ParseInt(string(fields[0]), 10, 64)
	if err != nil {
		return Record{}, errNotARecord
	}
	written, err := time.Parse(timeFormat, string(fields[1]))
	if err != nil {
		return Record{}, errNotARecord
	}
	sum, err := hex.DecodeString(string(fields[3]))
	if err != nil || len(sum) != sha256.Size {
		return Record{}, errNotARecord
	}
	r := Record{Number: number, Time: written, Writer: string(fields[2]), Sum: [sha256.Size]byte(sum)}
	if !bytes.Equal(bytes.TrimSuffix(r.encode(), []byte("\n")), line) {
		return Record{}, errNotARecord // spelled in another way than ours
	}
	return r, nil
}

// follow checks that r comes right after previous.
func (r Record) follow(previous Record) error {
	if r.Number != previous.Number+1 {
		return fmt.Errorf("record %d follows record %d", r.Number, previous.Number)
	}
	if r.Sum != r.sumAfter(previous) {
		return fmt.Errorf("checksum of record %d (written by %s) does not fit the record before it", r.Number, r.Writer)
	}
	return nil
}

// writerName makes a name that fits into one field of a record.
func writerName(name string) string {
	name = strings.Join(strings.Fields(name), "_")
	if name == "" {
		return "unnamed"
	}
	return name[:min(len(name), 256)]
}
