// Package greetings has a controller as kubebuilder projects have them, and its tests as they write them.
package greetings

import (
	"context"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"
	"sigs.k8s.io/controller-runtime/pkg/envtest"
	logf "sigs.k8s.io/controller-runtime/pkg/log"
	"sigs.k8s.io/controller-runtime/pkg/log/zap"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"
)

var kind = schema.GroupVersionKind{Group: "example.com", Version: "v1", Kind: "Greeting"}

// reconciler keeps a ConfigMap with the text of each Greeting.
type reconciler struct{ client.Client }

func (r reconciler) Reconcile(ctx context.Context, request ctrl.Request) (ctrl.Result, error) {
	greeting := newGreeting()
	if err := r.Get(ctx, request.NamespacedName, greeting); err != nil {
		return ctrl.Result{}, client.IgnoreNotFound(err)
	}
	text, _, _ := unstructured.NestedString(greeting.Object, "spec", "text")
	kept := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: request.Name, Namespace: request.Namespace}}
	_, err := controllerutil.CreateOrUpdate(ctx, r.Client, kept, func() error {
		kept.Data = map[string]string{"text": text}
		return controllerutil.SetControllerReference(greeting, kept, r.Scheme())
	})
	if err != nil {
		return ctrl.Result{}, err
	}
	before := greeting.DeepCopy()
	if err := unstructured.SetNestedField(greeting.Object, "Kept", "status", "phase"); err != nil {
		return ctrl.Result{}, err
	}
	return ctrl.Result{}, r.Status().Patch(ctx, greeting, client.MergeFrom(before))
}

func newGreeting() *unstructured.Unstructured {
	greeting := &unstructured.Unstructured{}
	greeting.SetGroupVersionKind(kind)
	return greeting
}

// started is an environment and the configuration that opens it.
func started(t *testing.T) (*envtest.Environment, *rest.Config) {
	t.Helper()
	logf.SetLogger(zap.New(zap.UseDevMode(true)))
	environment := &envtest.Environment{CRDDirectoryPaths: []string{"crds"}, ErrorIfCRDPathMissing: true}
	config, err := environment.Start()
	if err != nil {
		t.Fatalf("envtest did not start: %v", err)
	}
	t.Cleanup(func() {
		if err := environment.Stop(); err != nil {
			t.Errorf("envtest did not stop: %v", err)
		}
	})
	return environment, config
}

func eventually(ctx context.Context, t *testing.T, what string, holds func() bool) {
	t.Helper()
	always := func(context.Context) (bool, error) { return holds(), nil }
	if err := wait.PollUntilContextTimeout(ctx, 20*time.Millisecond, 20*time.Second, true, always); err != nil {
		t.Fatalf("%s: %v", what, err)
	}
}

func TestAReconcilerKeepsWhatItShould(t *testing.T) {
	_, config := started(t)
	ctx, cancel := context.WithCancel(context.Background())
	t.Cleanup(cancel)
	manager, err := ctrl.NewManager(config, ctrl.Options{
		Scheme:  scheme.Scheme,
		Metrics: metricsserver.Options{BindAddress: "0"},
	})
	if err != nil {
		t.Fatal(err)
	}
	err = ctrl.NewControllerManagedBy(manager).For(newGreeting()).Owns(&corev1.ConfigMap{}).
		Complete(reconciler{manager.GetClient()})
	if err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- manager.Start(ctx) }()

	api, err := client.New(config, client.Options{Scheme: scheme.Scheme})
	if err != nil {
		t.Fatal(err)
	}
	greeting := newGreeting()
	greeting.SetName("hello")
	greeting.SetNamespace("default")
	if err := api.Create(ctx, greeting.DeepCopy()); !apierrors.IsInvalid(err) {
		t.Fatalf("without a spec, and yet: %v", err)
	}
	greeting.Object["spec"] = map[string]any{"text": "hello"}
	if err := api.Create(ctx, greeting); err != nil {
		t.Fatal(err)
	}
	kept, key := &corev1.ConfigMap{}, client.ObjectKeyFromObject(greeting)
	keeps := func(text string) func() bool {
		return func() bool { return api.Get(ctx, key, kept) == nil && kept.Data["text"] == text }
	}
	eventually(ctx, t, "the text is kept", keeps("hello"))
	if !metav1.IsControlledBy(kept, greeting) {
		t.Errorf("it is not the greeting's: %v", kept.OwnerReferences)
	}
	eventually(ctx, t, "the status tells", func() bool {
		_ = api.Get(ctx, key, greeting)
		phase, _, _ := unstructured.NestedString(greeting.Object, "status", "phase")
		return phase == "Kept"
	})
	if err := api.Delete(ctx, kept); err != nil {
		t.Fatal(err)
	}
	eventually(ctx, t, "it is kept again", keeps("hello"))
	greeting.Object["spec"] = map[string]any{"text": "bye"}
	if err := api.Update(ctx, greeting); err != nil {
		t.Fatal(err)
	}
	eventually(ctx, t, "another text is kept", keeps("bye"))

	cancel()
	if err := <-ended; err != nil {
		t.Errorf("the manager did not end well: %v", err)
	}
}

func TestUsersHaveTheRightsThatAreBoundToThem(t *testing.T) {
	environment, config := started(t)
	user, err := environment.AddUser(envtest.User{Name: "bob", Groups: []string{"readers"}}, nil)
	if err != nil {
		t.Fatal(err)
	}
	bob, err := client.New(user.Config(), client.Options{Scheme: scheme.Scheme})
	if err != nil {
		t.Fatal(err)
	}
	ctx := context.Background()
	found := &corev1.ConfigMapList{}
	err = bob.List(ctx, found)
	if !apierrors.IsForbidden(err) || !strings.Contains(err.Error(), `User "bob"`) {
		t.Fatalf("bob may read: %v", err)
	}
	admin, err := client.New(config, client.Options{Scheme: scheme.Scheme})
	if err != nil {
		t.Fatal(err)
	}
	if err := admin.List(ctx, found); err != nil {
		t.Fatal(err)
	}
}
