// A grpc-go client of the echoing test server: ADDRESS METHOD. Every call must come back as it should.
package main

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"strings"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/encoding/gzip"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
)

// raw passes bytes through where generated code would serialise messages.
type raw struct{}

func (raw) Name() string { return "proto" }
func (raw) Marshal(v any) ([]byte, error) { return *v.(*[]byte), nil }
func (raw) Unmarshal(data []byte, v any) error {
	*v.(*[]byte) = bytes.Clone(data)
	return nil
}

var both = &grpc.StreamDesc{ServerStreams: true, ClientStreams: true}

func must(err error) {
	if err != nil {
		panic(err)
	}
}

func expect(err error, code codes.Code) {
	if status.Code(err) != code {
		panic(fmt.Sprintf("expected %v: %v", code, err))
	}
}

func open(conn *grpc.ClientConn, ctx context.Context, method string, options ...grpc.CallOption) grpc.ClientStream {
	stream, err := conn.NewStream(ctx, both, method, options...)
	must(err)
	return stream
}

func echo(stream grpc.ClientStream, message []byte) {
	must(stream.SendMsg(&message))
	var answer []byte
	must(stream.RecvMsg(&answer))
	if !bytes.Equal(answer, message) {
		panic("another message came back")
	}
}

func receive(stream grpc.ClientStream) error {
	var answer []byte
	return stream.RecvMsg(&answer)
}

func main() {
	address, method := os.Args[1], os.Args[2]
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	conn, err := grpc.NewClient(address, grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithDefaultCallOptions(grpc.ForceCodec(raw{}), grpc.MaxCallRecvMsgSize(1<<26)))
	must(err)
	defer conn.Close()

	var calls sync.WaitGroup
	for number := range 50 {
		calls.Add(1)
		go func() {
			defer calls.Done()
			stream := open(conn, metadata.AppendToOutgoingContext(ctx, "trace-bin", string([]byte{0, 1, 255})), method)
			for _, size := range []int{0, 1, 1000, 100_000, number} {
				echo(stream, bytes.Repeat([]byte{byte(number)}, size))
			}
			must(stream.CloseSend())
			if err := receive(stream); err != io.EOF {
				panic(err)
			}
		}()
	}
	calls.Wait()

	echo(open(conn, ctx, method), bytes.Repeat([]byte("0123456789"), 1_000_000))

	expect(receive(open(conn, ctx, "/no.Such/Method")), codes.Unimplemented)
	expect(receive(open(conn, ctx, method, grpc.UseCompressor(gzip.Name))), codes.Unimplemented)

	bad := open(conn, ctx, method)
	word := []byte("bad")
	must(bad.SendMsg(&word))
	err = receive(bad)
	expect(err, codes.InvalidArgument)
	if !strings.Contains(err.Error(), "100 % wrong\n") {
		panic(err)
	}

	short, stop := context.WithTimeout(ctx, 200*time.Millisecond)
	defer stop()
	expect(receive(open(conn, short, method)), codes.DeadlineExceeded)

	leaving, leave := context.WithCancel(ctx)
	stream := open(conn, leaving, method)
	echo(stream, []byte("x"))
	leave()
	expect(receive(stream), codes.Canceled)
	echo(open(conn, ctx, method), []byte("still here"))
	fmt.Println("fine")
}
